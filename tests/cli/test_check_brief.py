"""`p2pfl check` begins with what a person must know, in ten lines, and says a thing once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest

from p2pfl.cli import merged
from p2pfl.console.output import size
from tests.cli.conftest import change
from tests.idx_files import write_set

NAMES = [f"node{index}" for index in range(12)]


def facts(outcome):
    return dict(line.strip().split(maxsplit=1) for line in outcome.out.splitlines() if line.strip())


def test_ten_lines_say_mistakes_warnings_rows_and_costs(p2pfl, ward):
    outcome = p2pfl("check", ward)
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[0], len(lines) <= 10) == (0, "no mistakes, 1 warning", True)
    said = facts(outcome)
    report = json.loads(p2pfl("check", ward, "--format", "json").out)
    rows = sum(member["samples"] for member in report["members"])
    assert said["federation"].startswith("ward: 4 nodes, ring, 4 edges, rule mean")
    assert said["rows"].startswith(f"{rows:,} to train on, ")
    assert said["a"].startswith("round     20 steps of training, and 2.7 kB to 5.4 kB sent by the busiest node")
    assert said["sent"].startswith("estimate: ")
    assert said["sent"].split(" by ")[1].startswith("all nodes in 40 rounds and 10 closing ones; ")
    assert lines[-1] == f"more: p2pfl check {ward} --all, or --format json"


def test_the_estimate_of_bytes_covers_headers_and_closing_rounds(p2pfl, ward):
    """A run of three nodes with 40 rounds of this model sent 814 kB; payloads of 40 rounds alone are at most 598 kB."""
    change(ward / "federation.toml", 'topology = "ring"', 'topology = "path"')
    report = json.loads(p2pfl("check", ward, "--format", "json").out)
    low, high = (50 * each for each in report["traffic"]["bytes_per_round_all_nodes"])
    assert 0.9 * 814_000 < high < 1.1 * 814_000
    assert facts(p2pfl("check", ward))["sent"].startswith(f"estimate: {size(low)} to {size(high)} by all nodes")


def test_limits_are_shown_with_what_they_are_in_a_federation(p2pfl, ward):
    assert p2pfl("check").code == 2
    everywhere = json.loads(p2pfl("check", "--limits", "--format", "json").out)
    here = {row["limit"]: row["here"] for row in json.loads(p2pfl("check", ward, "--limits", "--format", "json").out)}
    assert [*here] == [row["limit"] for row in everywhere]
    body = json.loads(p2pfl("check", ward, "--format", "json").out)["traffic"]["message_bytes"]
    assert here["partial_bytes"] == size(2 * (body + 2**20))
    assert (here["MOST_MEMBERS"], here["MOST_RELAY_LINES"]) == ("4 rows", "2 neighbors")
    assert "GREETING_BYTES" in p2pfl("check", "--limits").out


def test_a_mistake_is_counted_first(p2pfl, ward):
    change(ward / "node1/node.toml", "# nice = 0", "nise = 0")
    outcome = p2pfl("check", ward)
    assert outcome.out.startswith("1 mistake, ")
    assert "the data of 1 other node are not here" in facts(outcome)["rows"]


def test_a_file_that_cannot_be_read_has_only_its_mistakes(p2pfl, ward):
    change(ward / "federation.toml", "rounds = 40", "rounds = 0")
    assert p2pfl("check", ward).out == "1 mistake, no warnings\n"


def test_corrections_as_large_as_the_steps_of_adam_are_warned_of(p2pfl, ward):
    """With AdamW and `variate`, four nodes with unequal digits reached an accuracy of .32 where `plain` reached .53."""
    for optimizer, method, warned in (("sgd", "variate", 0), ("adamw", "variate", 1), ("adamw", "plain", 0)):
        text = (ward / "federation.toml").read_text(encoding="utf-8")
        text = re.sub(r'(?m)^optimizer = "\w+"', f'optimizer = "{optimizer}"', text)
        text = re.sub(r'(?m)^(# )?method = "[^"]+"', f'method = "{method}"', text)
        (ward / "federation.toml").write_text(text, encoding="utf-8")
        said = p2pfl("check", ward).out
        assert said.count("method variate: its corrections have the size of steps of adamw") == warned, said


def test_fragments_are_recommended_where_copies_of_a_large_model_take_the_memory(p2pfl, tmp_path):
    p2pfl("new", "big", "--nodes", "5", "--topology", "complete")
    for name in NAMES[1:5]:
        shutil.rmtree(tmp_path / "big" / name)
    change(tmp_path / "big/task.py", "32", "36_000")
    file = tmp_path / "big/federation.toml"
    usual, half = file.read_text(encoding="utf-8"), "less memory, and 22 MB sent to them in a round in place of"
    for right, other, words in (
        ('"q4"', '"none"', f"130 MB {half} 43 MB: docs/how-to/fewer-bytes.md"),
        ('"q4"', '"q4"', f"54 MB {half} 6 MB: docs/how-to/fewer-bytes.md"),
        ('"q4"', '"fragment:4"', ""),
        ('rule = "mean"', 'rule = "hampel:b=1"', ""),
        ('"complete"', '"ring"', ""),
    ):
        file.write_text(usual.replace(right, other), encoding="utf-8")
        outcome = p2pfl("check", "big")
        told = [line for line in outcome.out.splitlines() if "keeps no copies of 4 neighbors' models: " in line]
        assert (outcome.code, len(told)) == (0, bool(words)), outcome.out
        assert words in "".join(told)


def test_what_is_written_to_a_disk_is_said_by_how_durable_a_node_is(p2pfl, ward):
    """Measured with as many values, q4, in paced rounds: 36.9 kB."""
    logged = "estimate: 38.2 kB written a round by the busiest node here, 3.3 GB a day at a round a second"
    assert facts(p2pfl("check", ward))["disk"] == logged
    for name in NAMES[:4]:
        change(ward / name / "node.toml", "[node]", '[node]\ndurability = "snapshot"\nsnapshot_s = 600.0')
    written = re.fullmatch(
        "estimate: (.+) MB written a day by the busiest node here, a snapshot every 600 s",
        facts(p2pfl("check", ward))["disk"],
    )
    assert 4 * 2_410 < 1e6 * float(written[1]) / 144 < 5 * 2_410


def test_the_promise_of_privacy_is_in_the_first_lines(p2pfl, ward):
    change(
        ward / "federation.toml", "[network]", '[privacy]\nnoise = 1.5\ndelta = 1e-4\naccountant = "rdp"\n\n[network]'
    )
    said = facts(p2pfl("check", ward))
    assert said["privacy"].startswith("epsilon up to ")


def test_a_warning_about_every_node_stands_once():
    said = [f"{name}: column age has a mean of {index}.5" for index, name in enumerate(NAMES)]
    assert merged([*said, "graph: thin"], NAMES) == [f"{said[0]} (11 more of this kind: --format json)", "graph: thin"]


def test_a_node_whose_name_is_a_part_of_a_word_joins_nothing_else():
    said = ["a: unscaled", "ab is far", "graph: bridges at a"]
    assert merged(said, ["a", "ab"]) == said


def test_a_graph_that_is_not_robust_enough_names_the_page_that_says_what_robust_means(p2pfl, ward):
    change(ward / "federation.toml", 'rule = "mean"', 'rule = "median:b=1"')
    change(ward / "federation.toml", 'topology = "ring"', 'topology = "complete"')
    said = p2pfl("check", ward).out
    (line,) = [line for line in said.splitlines() if "-robust" in line]
    assert line.endswith("What robust means: docs/how-to/which-graph.md")


@pytest.fixture
def built_in(p2pfl, tmp_path, monkeypatch):
    """Make federations of built-in tasks; return a function that checks one, by models that are built or counted."""
    for site in ("north", "south"):
        rows = "\n".join(f"{n % 7},{n % 2},{n % 5}.5" for n in range(60))
        (tmp_path / f"{site}.csv").write_text(f"age,ill,dose\n{rows}\n", encoding="utf-8")
    write_set(tmp_path / "mnist", "train", count=30)
    write_set(tmp_path / "mnist", "t10k")
    tables = ("--task", "csv", "north.csv", "south.csv", "--target")
    for name, options in {"digits": (), "mnist-idx": (), "ill": (*tables, "ill"), "dose": (*tables, "dose")}.items():
        assert p2pfl("new", name, *(options or ("--task", "digits"))).code == 0
    change(tmp_path / "mnist-idx/federation.toml", 'name = "digits"', 'name = "mnist-idx"\npath = "../mnist"')

    def check(*words, built=True):
        with monkeypatch.context() as patch:
            patch.setattr("p2pfl.cli.check.find_spec", lambda name: None if built else name)
            return p2pfl("check", *words)

    return check


@pytest.mark.parametrize("task", ["digits", "mnist-idx", "ill", "dose"])
def test_check_of_a_built_in_task_imports_no_torch(built_in, tmp_path, task):
    code = "import sys; from p2pfl.cli.check import check; check([sys.argv[1]], standalone_mode=False)"
    command = [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)", task]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)


@pytest.mark.parametrize(
    ("place", "right", "wrong", "how"),
    [
        ("digits/federation.toml", "[training]", "hidden = 5\n[training]", "counted"),
        ("digits/federation.toml", 'optimizer = "sgd"', 'optimizer = "adam"', "counted"),
        ("digits/federation.toml", "# momentum = 0.0", "momentum = 0.9", "counted"),
        ("mnist-idx/federation.toml", "[training]", "hidden = 5\n[training]", "counted"),
        ("ill/federation.toml", '# model = "linear"', 'model = "mlp"', "counted"),
        ("dose/federation.toml", "# weight_decay = 0.0", "weight_decay = 0.1", "built"),
        ("digits/federation.toml", "[training]", "hidden = 200000\n[training]", "built"),
        ("digits/federation.toml", '# share = "*"', 'share = "1.*"', "built"),
        ("digits/node1/node.toml", '# device = "cpu"', 'device = "auto"', "in part"),
        ("digits/federation.toml", "[training]", "hidden = 0\n[training]", "wrong"),
        ("digits/federation.toml", '# share = "*"', 'share = "head.*"', "wrong"),
        ("digits/federation.toml", 'optimizer = "sgd"', 'optimizer = "adam"\nmomentum = 0.5', "wrong"),
        ("digits/node1/node.toml", '# path = "data.npz"', 'path = "data.npz"', "wrong"),
        ("digits/node1/node.toml", '# device = "cpu"', 'device = "cuda:77"', "wrong"),
        ("mnist-idx/federation.toml", 'path = "../mnist"', 'path = "nowhere"', "wrong"),
        ("ill/federation.toml", "[training]", "class_weights = { il = 2.0 }\n[training]", "wrong"),
        ("dose/federation.toml", "[training]", 'metric = "accuracy"\n[training]', "wrong"),
        ("dose/federation.toml", "# logit_adjust = 0.0", "logit_adjust = 1.0", "wrong"),
    ],
)
def test_without_torch_a_built_in_task_has_the_same_figures_and_mistakes(built_in, tmp_path, place, right, wrong, how):  # noqa: PLR0917
    change(tmp_path / place, right, wrong)
    task = place.partition("/")[0]
    outcome, built = built_in(task, built=False), built_in(task)
    assert (outcome.code, outcome.err) == (2 if how == "wrong" else 0, built.err)
    needs = json.loads(built_in(task, "--format", "json").out)["memory"].values()
    own = size(max((sum(parts.values()) - parts["program"] for parts in needs), default=0))
    said, expected = facts(outcome), facts(built)
    memory, _ = said.pop("memory", ""), expected.pop("memory", "")
    assert said == expected
    start = "estimate: the program, which --all measures, and up to "
    assert memory.startswith(f"{start}{own} a node (" if how == "counted" else start if how == "in part" else "")
    assert (how == "built") == ("(program " in memory)
