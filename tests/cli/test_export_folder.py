"""`p2pfl export --format` writes a language model as a folder that its libraries read."""

from __future__ import annotations

import json
import math
import shutil

import pytest

REASON = "the extra transformers has it, which `dev` does without"
transformers = pytest.importorskip("transformers", reason=REASON)
peft = pytest.importorskip("peft", reason=REASON)

import torch  # noqa: E402

from p2pfl.adapt.transformers import CausalLoss  # noqa: E402
from p2pfl.config import load_config, load_node  # noqa: E402
from p2pfl.crypto import FederationMismatch  # noqa: E402
from p2pfl.errors import UserError  # noqa: E402
from p2pfl.node import (  # noqa: E402
    binding,
    read_learned,
    read_setup,
    recover,
)
from p2pfl.storage import Store  # noqa: E402
from tests.adapt.language_model import TEXT, write_model  # noqa: E402
from tests.cli.conftest import run_rounds  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A federation whose node `anna` has learned, and the folder of its model."""
    from p2pfl.cli.main import main  # noqa: PLC0415 - torch is there by now

    place = tmp_path_factory.mktemp("chat")
    for folder in ("tiny", "texts"):
        (place / folder).mkdir()
    write_model(place / "tiny")
    for name in ("anna", "ben"):
        (place / f"texts/{name}.txt").write_text(TEXT, encoding="utf-8")
    words = ["--task", "lora", "--model", str(place / "tiny"), "--data", str(place / "texts")]
    with pytest.raises(SystemExit):
        main(["new", str(place / "chat"), *words])
    file = place / "chat/federation.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("block = 128 ", "block = 32 "), encoding="utf-8")
    run_rounds(place / "chat", "anna", 2)
    return place / "chat"


def test_both_folders_are_as_good_as_the_node(p2pfl, chat, tmp_path):
    learned = read_learned(chat / "anna")
    told = json.loads(p2pfl("evaluate", chat / "anna", "--format", "json").out)["test_metrics"]["perplexity"]
    rows = learned.learner.test_set.inputs
    for form in ("peft", "merged"):
        outcome = p2pfl("export", chat / "anna", "-o", form, "--format", form)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / form).stat().st_mode & 0o777 == 0o700
        assert not [file.name for file in (tmp_path / form).iterdir() if file.suffix in (".bin", ".pt", ".pth")]
    base = transformers.AutoModelForCausalLM.from_pretrained(chat.parent / "tiny")
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        found = [math.exp(float(CausalLoss(model)(rows).double().mean())) for model in (adapted, merged)]
    assert found[0] == pytest.approx(told, rel=1e-6)
    assert found[1] == pytest.approx(told, rel=1e-4)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")("a b")["input_ids"] == [1, 2]


def test_only_a_folder_that_export_has_written_is_replaced_and_only_if_that_is_forced(p2pfl, chat, tmp_path):
    """Not the model that the federation starts from, nor a project, though both have a config.json."""
    shutil.copytree(chat.parent / "tiny", tmp_path / "base")
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/config.json").write_text("mine")
    before = sorted(file for place in ("base", "project") for file in (tmp_path / place).rglob("*"))
    for place, force, code in (
        ("base", "--force", 2),
        ("project", "--force", 2),
        ("new", "", 0),
        ("new", "", 2),
        ("new", "--force", 0),
    ):
        words = [word for word in ("export", chat / "anna", "-o", place, "--format", "peft", force) if word]
        outcome = p2pfl(*words)
        assert (outcome.code, "--output: already exists" in outcome.err) == (code, code == 2), outcome.err
    assert sorted(file for place in ("base", "project") for file in (tmp_path / place).rglob("*")) == before
    assert json.loads((tmp_path / "new/adapter_config.json").read_text())["r"] == 8
    assert json.loads((tmp_path / "new/p2pfl.json").read_text())["node"] == "anna"
    (tmp_path / "new/notes").mkdir()
    assert p2pfl(*words).code == 2


def test_a_node_with_another_rank_is_refused_by_name_and_so_is_its_own_old_state(chat, tmp_path):
    other = shutil.copytree(chat, tmp_path / "chat")
    text = (other / "federation.toml").read_text(encoding="utf-8")
    (other / "federation.toml").write_text(text.replace("rank = 8", "rank = 4"), encoding="utf-8")
    federations = [load_config(place) for place in (chat, other)]
    setups = [read_setup(one, load_node(one.path.parent / "anna", one)) for one in federations]
    mine, theirs = (binding(setup) for setup in setups)
    assert mine.differences(b"transcript", theirs.blind(b"transcript")) == ("task.options", "schema", "model")
    assert "task.options" in str(FederationMismatch(b"", ("task.options",)))
    with pytest.raises(UserError, match="the state in this folder is of another"):
        recover(setups[1], Store.open(setups[1].node.state_dir, durability="exchange"))
