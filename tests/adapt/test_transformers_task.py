"""`p2pfl.adapt.transformers`: adapters of a causal language model are learned, and nothing else is exchanged."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

REASON = "the extra transformers has it, which `dev` does without"
transformers = pytest.importorskip("transformers", reason=REASON)
peft = pytest.importorskip("peft", reason=REASON)

import torch  # noqa: E402

from p2pfl.adapt.transformers import (  # noqa: E402
    blocks_of,
    task,
)
from p2pfl.config import Compute, TaskConfig, TrainingConfig  # noqa: E402
from p2pfl.errors import UserError  # noqa: E402
from p2pfl.learn import (  # noqa: E402
    RoundStart,
    make_learner,
)
from tests.adapt.language_model import TEXT, write_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tiny")
    write_model(place)
    return place


def learner(folder, path, *, seed=0, compute=None, **options):
    path.write_text(TEXT, encoding="utf-8")
    training = TrainingConfig(local_steps=30, batch_size=8, optimizer="adamw", learning_rate=0.02)
    place = {"node_index": 0, "node_count": 2, "node_name": "n", "seed": seed, "base_dir": folder.parent}
    config = TaskConfig(name="lora", options={"model": folder.name, "block": 32, **options})
    return make_learner(config, training, **place, local={"path": str(path)}, local_dir=path.parent, compute=compute)


def test_adapters_learn_a_text_and_are_all_that_the_vector_has(folder, tmp_path):
    made = learner(folder, tmp_path / "own.txt", rank=4)
    assert made.size == 2 * 4 * (4 * (16 + 16) + 3 * (16 + 32))
    assert made.measures[0].name == "perplexity"
    assert not made.measures[0].higher_is_better
    first = made.evaluate(made.initial(), "test")
    assert first.metrics["perplexity"] == pytest.approx(math.exp(first.loss))
    model = made.initial()
    for index in range(2):
        model = made.train(RoundStart(model), index).vector
    assert made.evaluate(model, "test").metrics["perplexity"] < 0.6 * first.metrics["perplexity"]
    assert made.local_state() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_weights_are_mapped_from_the_file_and_the_same_for_all_learners_of_a_process(folder, tmp_path, dtype):
    place = shutil.copytree(folder, tmp_path / "model")
    if dtype != torch.float32:
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(place)
    one, other = (learner(place, tmp_path / name) for name in ("a.txt", "b.txt"))
    assert one.train(RoundStart(one.initial()), 0).loss > 0
    frozen = [
        {name: tensor for name, tensor in made.model.module.named_parameters() if not tensor.requires_grad}
        for made in (one, other)
    ]
    assert {tensor.dtype for tensor in frozen[0].values()} == {dtype}
    assert {tensor.dtype for tensor in one.model.parameters} == {torch.float32}
    pointers = [{name: tensor.data_ptr() for name, tensor in found.items()} for found in frozen]
    assert pointers[0] == pointers[1]
    mapped, copied = mappings_of(place)
    assert all(any(start <= pointer < end for start, end in mapped) for pointer in pointers[0].values())
    assert copied == 0, "nothing was written to, so the system has the pages once for all processes"


def mappings_of(folder):
    """Return the places (start, end) at which files of a folder are mapped, and how many kB there are own copies."""
    places, copied, inside = [], 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(": ")
        if not rest or " " in key:
            inside = str(folder) in line
            places += [tuple(int(end, 16) for end in line.split()[0].split("-"))] if inside else []
        elif key == "Anonymous" and inside:
            copied += int(rest.split()[0])
    return places, copied


def test_without_adapters_all_is_trained(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    whole, part = task(folder, block=32), task(folder, peft=config, block=32)
    count = sum(one.numel() for one in model.parameters())
    assert sum(one.numel() for one in whole.model().state_dict().values()) == count
    assert sum(one.numel() for one in part.model().state_dict().values()) == 2 * 2 * (2 * 16 + 2 * 16) / 2


@pytest.mark.parametrize(
    ("spoil", "options", "said"),
    [
        ("tokenizer*", {}, "model: there is no tokenizer"),
        ("config.json", {}, "there is no model: config.json is missing"),
        ("*.safetensors", {}, "there are no weights as safetensors"),
        (None, {"modules": ["nothing"]}, "task.modules: the adapters match no module of the model (found 'nothing'"),
        (None, {"modules": ["q_proj", "nothing"]}, "(found 'nothing'); allowed: down_proj, embed_tokens, "),
        (None, {"ffa": True}, "task.ffa: is gone"),
        (None, {"rank": 0}, "task.rank: not a rank (found 0)"),
        (None, {"rank": "8"}, "task.rank: wrong type (found '8'); allowed: a whole number"),
        (None, {"modules": "q_proj"}, "task.modules: wrong type (found 'q_proj'); allowed: a list of texts"),
        (None, {"alpha": 0}, "task.alpha: not a scale (found 0.0); allowed: a number above 0"),
        (None, {"alpha": math.inf}, "task.alpha: not a scale (found inf)"),
        (None, {"dropout": 1.5}, "task.dropout: not a share (found 1.5)"),
        (None, {"block": 1}, "task.block: not a number of tokens that the model reads (found 1); allowed: 2 to 64"),
        (None, {"block": 65}, "(found 65); allowed: 2 to 64"),
        (b"", {}, "own.txt: is empty"),
        (b"  \n", {}, "own.txt: is empty"),
        (b"a\xffb", {}, "own.txt: is not UTF-8 (found 'byte 1')"),
        (b"a b c", {}, "own.txt: has too few tokens (found 4); allowed: at least 64"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(folder, tmp_path, spoil, options, said):
    place = tmp_path / "model"
    place.mkdir()
    for file in folder.iterdir():
        if not (isinstance(spoil, str) and file.match(spoil)):
            (place / file.name).write_bytes(file.read_bytes())
    own = tmp_path / "own.txt"
    own.write_bytes(spoil if isinstance(spoil, bytes) else TEXT.encode())
    training, where = TrainingConfig(), {"local": {"path": str(own)}, "local_dir": tmp_path}
    config = TaskConfig(name="lora", options={"model": "model", "block": 32, **options})
    with pytest.raises(UserError) as caught:
        make_learner(config, training, node_index=0, node_count=2, node_name="n", seed=0, base_dir=tmp_path, **where)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def config_of(**changed):
    def spoil(place):
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        (place / "config.json").write_text(json.dumps({**config, **changed}), encoding="utf-8")

    return spoil


def file_of(name, content):
    return lambda place: (place / name).write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (config_of(num_hidden_layers=3), "the weights do not fit config.json: some are missing, or have another shape"),
        (config_of(intermediate_size=64), "(found 'model.layers.0.mlp.down_proj.weight, "),
        (
            config_of(model_type="own", auto_map={"AutoConfig": "own.Own"}),
            "the model needs code of its own, which is not",
        ),
        (file_of("model.safetensors", b"abc"), "the model cannot be loaded: "),
        (file_of("adapter_config.json", b"{}"), "the folder has adapters of its own, which are not read"),
    ],
)
def test_a_folder_whose_parts_do_not_fit_is_refused(folder, tmp_path, spoil, said):
    place = shutil.copytree(folder, tmp_path / "model")
    spoil(place)
    with pytest.raises(UserError) as caught:
        task(place)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_with_more_words_than_the_model_is_refused(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with pytest.raises(UserError, match="the tokenizer has words that the model lacks"):
        blocks_of([(folder, TEXT)], tokenizer, 32, words=5)


@pytest.mark.filterwarnings("error")
def test_a_user_hears_nothing_of_how_activations_are_computed_again(folder, tmp_path):
    assert learner(folder, tmp_path / "own.txt", checkpointing=True).model.module.net.is_gradient_checkpointing


def test_activations_that_are_computed_again_give_the_same_bits(folder, tmp_path, monkeypatch):
    kept, again = (learner(folder, tmp_path / "own.txt", dropout=0.3, checkpointing=one) for one in (False, True))
    calls, forward = [], transformers.models.llama.modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(
        "transformers.models.llama.modeling_llama.LlamaMLP.forward", lambda *given: calls.append(1) or forward(*given)
    )
    rounds = []
    for made in (kept, again):
        rounds.append(made.train(RoundStart(made.initial()), 0))
        calls.append(0)
    np.testing.assert_array_equal(rounds[0].vector, rounds[1].vector)
    assert rounds[0].loss == rounds[1].loss
    assert calls[::-1].index(0, 1) - 1 == 2 * calls.index(0), "each layer is computed twice"


def test_mixed_precision_and_parts_of_a_batch_learn_the_same(folder, tmp_path):
    ways = {"plain": {}, "parts": {"micro_batch_size": 3}, "mixed": {"precision": "bf16"}}
    made = {name: learner(folder, tmp_path / "own.txt", compute=Compute(**way)) for name, way in ways.items()}
    start = made["plain"].initial()
    ends = {name: one.train(RoundStart(start), 0) for name, one in made.items()}
    losses = {name: made["plain"].evaluate(end.vector, "test").loss for name, end in ends.items()}
    assert losses["parts"] == pytest.approx(losses["plain"], rel=1e-3)
    assert losses["mixed"] == pytest.approx(losses["plain"], rel=0.05)
    assert losses["mixed"] != losses["plain"]
    assert losses["plain"] < 0.8 * made["plain"].evaluate(start, "test").loss


@pytest.mark.parametrize(
    ("options", "shapes", "digests"),
    [({"rank": 4}, 2, 2), ({"alpha": 8.0}, 1, 2), ({"modules": ["q_proj"]}, 2, 2), ({"dropout": 0.5}, 1, 1)],
)
def test_nodes_whose_adapters_differ_cannot_mix(folder, tmp_path, options, shapes, digests):
    both = [learner(folder, tmp_path / "own.txt", **each) for each in ({}, options)]
    assert len({made.shape_digest for made in both}) == shapes
    assert len({made.digest for made in both}) == digests
