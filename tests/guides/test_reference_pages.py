"""The reference has every command, key, spec, metric and public name, and says something of each."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

import p2pfl
import p2pfl.aggregate
import sim
from p2pfl import limits
from p2pfl.aggregate import BEFORE, RULES
from p2pfl.cli import cli
from p2pfl.compress import list_stages
from p2pfl.config import (
    EDGE,
    FEDERATION,
    GOSSIP,
    MEMBER,
    NODE,
    OWN_NETWORK,
    PRIVACY,
    SCHEDULES,
    TASK,
    TRAINING,
    TrainingConfig,
)
from p2pfl.core import STALENESS
from p2pfl.features import FEATURES
from p2pfl.features.status import prometheus
from p2pfl.learn import BUILT_IN
from p2pfl.learn.table.rows import KEYS as LAYOUT_KEYS
from p2pfl.methods import METHODS
from p2pfl.node import NOTICES, alarm_texts
from sim import AMEND, ATTACKS, CHURN, COMPUTE, CRASH, JOIN, LIARS, LINKS, RUN, SECTIONS, SLOW, WHO, LinkSpec
from sim.worlds.model import PARTITION
from topologies import FAMILIES

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from reference_pages import NEWS

SCRIPT = Path(__file__).parents[2] / "docs" / "reference_pages.py"

NAMES = ["alarms.md", "commands.md", "limits.md", "prometheus.md", "python-api.md", "settings.md", "specs.md"]
CELL = re.compile(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)")  # not in code
KINDS = {
    "[federation]": FEDERATION,
    "[task]": TASK,
    "[training]": TRAINING,
    "[gossip]": GOSSIP,
    "[privacy]": PRIVACY,
    "[network]": OWN_NETWORK,
    "[[edge]]": EDGE,
    "[[node]]": MEMBER,
    "[node]": NODE,
    "[compute]": COMPUTE,
    "[links]": LINKS,
    "[[slow]]": SLOW,
    "[[partition]]": ["groups", *PARTITION],
    "[[crash]]": CRASH,
    "[churn]": CHURN,
    "[[join]]": JOIN,
    "[[amend]]": ["join", "leave", *AMEND],
    "[liars]": LIARS,
    "[run]": RUN,
    "Which nodes": ["nodes", *WHO],
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reference_pages", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def pages(script):
    return script.pages()


def sections(text):
    """The text below each heading; where one comes twice, below the last of them."""
    parts = re.split(r"(?m)^#+ (.*)$", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text):
    """The cells of each row of each table, by the heads of the columns."""
    head = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
        if head is None:
            head = cells
        elif not set("".join(cells)) <= {"-"}:
            yield dict(zip(head, cells, strict=True))


def items(text):
    """Each name of a list, with the lines below it."""
    parts = re.split(r"(?m)^- `([^`]+)`: ", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def below(command, path):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found and not found.hidden:
                yield from below(found, f"{path} {name}")


def test_every_command_is_there_with_its_options_and_its_first_example(pages):
    found = sections(pages["commands.md"])
    for path, command in below(cli, "p2pfl"):
        assert f"\n{path} " in found[path] or f"\n{path}\n" in found[path]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                name = option.opts[-1]
                assert name in found[path] or name.replace("--", "--[no-]", 1) in found[path], (path, name)
        for line in re.findall(r"(?m)^  (p2pfl .*)$", command.epilog or ""):
            assert line in found[path]


@pytest.mark.parametrize("table", KINDS)
def test_every_key_is_there(pages, table):
    found = sections(pages["settings.md"])[table]
    assert [row["key"].strip("`") for row in rows(found)] == list(KINDS[table])


def test_a_default_and_a_bound_are_those_of_the_program(pages):
    found = {row["key"]: row for row in rows(sections(pages["settings.md"])["[training]"])}
    assert found["`closing_rounds`"]["default"] == f"`{TrainingConfig().closing_rounds}`"
    assert found["`closing_rounds`"]["allowed"] == TRAINING["closing_rounds"].allowed
    assert found["`optimizer`"]["allowed"] == "text: sgd, adam, adamw"


def test_every_table_of_a_world_file_is_there_and_its_defaults_are_those_of_the_program(pages):
    found = sections(pages["settings.md"])
    assert [name for name in SECTIONS if not {f"[{name}]", f"[[{name}]]"} & KINDS.keys()] == []
    told = {row["key"].strip("`"): row["default"] for row in rows(found["[links]"])}
    assert told["latency_s"] == f"`{LinkSpec().latency_s.low}`"
    assert (told["bandwidth"], told["loss"]) == ("not set", "`0.0`")
    assert {row["default"] for row in rows(found["[[partition]]"])} == {"must be given"}


def test_every_field_of_a_report_is_explained():
    """The reference has what is written below each field."""
    page = Path(inspect.getfile(p2pfl.Report)).read_text(encoding="utf-8").partition("class Report(")[2]
    silent = [key for key in p2pfl.Report.__struct_fields__ if not re.search(rf'\n    {key}: .*\n    """\w', page)]
    assert silent == []


def test_every_built_in_task_and_every_key_of_a_table_is_there(pages):
    text = pages["settings.md"]
    assert [name for name in BUILT_IN if f"- `{name}`" not in text] == []
    keys = {row["key"].strip("`") for row in rows(sections(text)["Keys of csv"])}
    from p2pfl.learn.table import MEANS  # noqa: PLC0415
    from p2pfl.learn.table.task import KEYS, TYPES  # noqa: PLC0415

    assert keys == {*KEYS, *KEYS, *LAYOUT_KEYS}
    assert set(MEANS) == set(TYPES)


def test_every_spec_is_there(pages):
    found = sections(pages["specs.md"])
    for title, catalogs in (
        ("Rules", (RULES, BEFORE)),
        ("Methods", (METHODS,)),
        ("Staleness", (STALENESS,)),
        ("Schedules", (SCHEDULES,)),
        ("Attacks", (ATTACKS,)),
    ):
        names = [name for catalog in catalogs for name in catalog]
        pairs = zip(names, items(found[title]), strict=True)
        assert [(name, spec) for name, spec in pairs if not re.match(re.escape(name) + r"(?![\w-])", spec)] == []
    assert list(items(found["Compressors"])) == [entry.written or entry.name for entry, _ in list_stages()]


def test_every_parameter_of_a_spec_is_there(pages):
    text = pages["specs.md"].lower()
    for catalog in (RULES, BEFORE, METHODS, STALENESS, SCHEDULES, ATTACKS):
        for entry in catalog.values():
            assert [one.name for one in entry.parameters if one.means.lower() not in text] == []


def test_every_graph_is_there(pages):
    found = sections(pages["specs.md"])
    kinds = [text for title, text in found.items() if title.startswith("Topologies: ")]
    assert {name for text in kinds for name in items(text)} == set(FAMILIES)


def test_every_limit_is_there_with_what_it_bounds(pages):
    names = {name for name in vars(limits) if name.isupper()} - {"CHANNEL_PER_S", "CHANNEL_AT_ONCE"}
    names |= {field.name for field in fields(limits.Limits)} | {f"channel {name}" for name in limits.CHANNEL_PER_S}
    found = {row["name"].strip("`"): row["meaning"] for row in rows(pages["limits.md"])}
    assert set(found) == names
    assert "-" not in found.values()


def test_every_alarm_is_there_with_what_to_do_and_what_ends_it(pages):
    found = sections(pages["alarms.md"])
    for kind, one in alarm_texts(FEATURES).items():
        rows_of = dict(re.findall(r"^\| (means|the node|to do|ends when) \| (.*) \|$", found[kind], re.MULTILINE))
        ends = NEWS[one.ended_by] if one.ended_by else "10 minutes have passed without another one."
        assert rows_of == {"means": one.means, "the node": one.does, "to do": one.advice, "ends when": ends}
    assert {row["event"].strip("`") for row in rows(found["Events that are no alarm"])} == set(NEWS)


def test_every_event_that_is_no_alarm_has_a_meaning_too():
    package = Path(p2pfl.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    alarms = alarm_texts(FEATURES)
    told = set(re.findall(r'feed\.(?:tell|keep)\("([a-z-]+)"', sources))
    assert NOTICES | told | {one.ended_by for one in alarms.values() if one.ended_by} <= set(NEWS)
    assert [kind for kind in NEWS if f'"{kind}"' not in sources] == []
    assert [kind for kind in NEWS if kind in alarms] == []


def test_every_metric_is_there(pages):
    names = {row["name"].strip("`") for row in rows(pages["prometheus.md"])}
    source = Path(prometheus.__file__).read_text(encoding="utf-8")
    told = re.findall(r'(?:MetricLine|_lines)\(\s*"(\w+)"', source)
    assert names == {f"p2pfl_{name}" for name in told}


def test_every_public_name_is_there_and_every_method_says_what_it_does(pages):
    found = sections(pages["python-api.md"])
    assert [name for name in (*p2pfl.__all__, *sim.__all__) if name not in found] == []
    silent = [title for title, text in found.items() if not re.sub(r"(?s)```.*?```", "", text).strip()]
    assert [title for title in silent if not title.endswith(("import", "names beside"))] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_meaning_is_empty(pages, name):
    for row in rows(pages[name]):
        assert row["meaning"] not in ("", "-", "."), row
        assert "{" not in row["meaning"].replace("{ ill", ""), row
        assert [key for key, cell in row.items() if not cell] == []
    for line in re.findall(r"(?m)^ *- .*$", pages[name]):
        assert re.search(r"[\w)`]", line.partition(": ")[2] or line), line
        assert ": ." not in line, line


@pytest.mark.long
def test_two_runs_write_the_same_and_neither_imports_torch(tmp_path):
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    for place, columns in (("a", "60"), ("b", "200")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(SCRIPT), str(tmp_path / place)],
            env={**os.environ, "PYTHONHASHSEED": columns, "COLUMNS": columns},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        assert done.stdout == "0 False False\n"
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / one).iterdir()} for one in "ab")
    assert sorted(first) == NAMES
    assert first == second


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_without_one_folder_it_says_how_it_is_called(script, capsys, arguments):
    assert script.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python docs/reference_pages.py OUT\n"


def test_a_folder_that_cannot_be_written_is_one_line(script, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert script.main([str(tmp_path / "file")]) == 2
    assert re.fullmatch(r"error: .*file: cannot be written: File exists\n", capsys.readouterr().err)
