"""JSON Schemas of the files that people write accept what the program does, and refuse most of what it refuses."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from p2pfl.config import federation_tables, node_tables, schema_of, write_schemas
from sim.sweeps.plan import tables as sweep_tables
from sim.worlds.model import tables as world_tables

ROOT = Path(__file__).parents[2]
TABLES = {"federation": federation_tables(), "node": node_tables(), "world": world_tables(), "sweep": sweep_tables()}
SCHEMAS = {name: json.loads(schema_of(name, tables)) for name, tables in TABLES.items()}
KEYS = [(name, table, key) for name, tables in TABLES.items() for table in tables for key in table.kinds]
VALUES = [
    *(True, False, -1, 0, 1, 2, 3, 8, 40, 0.0, 0.5, 1.5, 1e6, 1e12),
    *("", "none", "auto", "*", "x", "ring", "mean", "plain", "adam", "exchange", "bf16", "apart", "mix", "record"),
    *("uniform:1,2", "20:00-06:00", "10.0.0.1:8470", "127.0.0.1:0", "wss://a.example.org/p", "http://proxy:3128"),
    *("cuda:1", "after 2 h", "cosine:rounds=40", "top-k:0.05+q8", "hinge:4,0.5", "sign-flip", "shared", "models"),
    *("private", "prv", [], ["a"], ["a", "b"], [0, 1], [["a"], ["b"]], ["wss://a.example.org/p"], {"a": 1}),
]


def mistakes(name, document):
    return [error.message for error in Draft7Validator(SCHEMAS[name]).iter_errors(document)]


def kinds_of(document):
    """The kinds of file in which these tables may stand."""
    return [name for name, tables in TABLES.items() if document.keys() <= {table.name for table in tables}]


@pytest.mark.parametrize("name", TABLES)
def test_a_schema_is_one_and_tells_of_each_key_what_it_is_for_and_what_is_allowed(name):
    Draft7Validator.check_schema(SCHEMAS[name])
    for table in TABLES[name]:
        shown = SCHEMAS[name]["properties"][table.name]
        shown = shown.get("items", shown)
        assert list(shown["properties"]) == list(table.kinds)
        for key, kind in table.kinds.items():
            assert kind.means in shown["properties"][key]["description"]
            assert kind.allowed in shown["properties"][key]["description"]


def test_a_default_is_a_value_that_the_schema_allows():
    wrong = [
        (name, table.name, key)
        for name, table, key in KEYS
        if key in table.defaults and not Draft7Validator(table.kinds[key].schema).is_valid(table.defaults[key])
    ]
    assert wrong == []
    shown = SCHEMAS["federation"]["properties"]["training"]["properties"]
    assert (shown["closing_rounds"]["default"], shown["optimizer"]["enum"]) == (10, ["sgd", "adam", "adamw"])


def test_a_schema_is_never_stricter_than_the_program(keys):
    """But `nodes` and lists of them, which are read beside a federation: tests of worlds have them."""
    wrong = []
    for name, table, key in KEYS:
        kind = table.kinds[key]
        if table.name == "axes" or kind.read is tuple:
            continue
        accepted = [value for value in (*VALUES, keys[0], keys) if reads(kind, value)]
        wrong += [
            (name, table.name, key, value) for value in accepted if not Draft7Validator(kind.schema).is_valid(value)
        ]
        assert accepted, (name, table.name, key)
    assert wrong == []


def reads(kind, value):
    with suppress(ValueError, TypeError):
        return kind.read(value) is not kind
    return False


FILES = [path for folder in ("benchmarks", "deploy") for path in sorted((ROOT / folder).rglob("*.toml"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, text in enumerate(re.findall(r"(?ms)^```toml\n(.*?)^```", page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_benchmarks_and_of_the_five_boards_is_right(path):
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    assert [] in [mistakes(name, document) for name in kinds_of(document)]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_of_the_docs_is_right_as_far_as_it_goes(text):
    document = tomllib.loads(text)
    if all(isinstance(table, dict | list) for table in document.values()):  # else keys of a table that the text names
        found = [mistakes(name, document) for name in kinds_of(document)]
        assert [] in [[each for each in one if "is a required" not in each] for one in found]


def test_what_new_writes_names_its_schema_beside_it_and_is_right(valid_text, tmp_path):
    write_schemas(tmp_path)
    assert {path.name for path in (tmp_path / ".schema").iterdir()} == {f"{name}.json" for name in TABLES}
    place = re.match(r"#:schema (\S+)\n", valid_text)[1]
    assert json.loads((tmp_path / place).read_text(encoding="utf-8")) == SCHEMAS["federation"]
    every_key = re.sub(r"(?m)^# (?=\w+ = )", "", valid_text)
    assert mistakes("federation", tomllib.loads(every_key)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("federation", "[training]\nround = 4", "'round' was unexpected"),
        ("federation", "[trainings]\nrounds = 4", "'trainings' was unexpected"),
        ("federation", '[training]\nrounds = "4"', "'4' is not of type 'integer'"),
        ("federation", "[training]\nrounds = 0", "0 is less than the minimum of 1"),
        ("federation", '[training]\noptimizer = "sdg"', "'sdg' is not one of ['sgd', 'adam', 'adamw']"),
        ("federation", "[federation]\nseed = 1", "'name' is a required property"),
        ("federation", '[node]\nname = "pi1"', "is not of type 'array'"),
        ("federation", '[[node]]\nname = ".pi1"\nkey = "k"', "does not match"),
        ("node", '[node]\nthreads = "two"', "'two' is not of type 'integer'"),
        ("node", "[node]\ncheckpoint_every = true", "True is not of type 'integer'"),
        ("node", '[node]\ndevice = "gpu"', "does not match"),
        ("world", "[links]\nloss = 1.5", "1.5 is greater than the maximum of 1"),
        ("world", "[[crash]]\ncount = 1", "'at_s' is a required property"),
        ("world", "[crash]\nat_s = 1", "is not of type 'array'"),
        ("sweep", "[sweep]\nseeds = 0", "0 is not valid under any of the given schemas"),
        ("sweep", "[axes]\nnodes = 4", "4 is not of type 'array'"),
        ("sweep", '[axes]\nclock = ["apart", "in step"]', "'in step' is not one of ['apart', 'in-step']"),
    ],
)
def test_an_unknown_key_a_wrong_type_and_a_wrong_choice_are_refused(name, text, said):
    found = mistakes(name, tomllib.loads(text))
    assert len(found) == 1
    assert said in found[0]


def test_the_keys_of_a_task_are_its_own():
    assert mistakes("federation", {"task": {"name": "task.py:task", "layers": [8, 8]}}) == []
    assert mistakes("node", {"data": {"path": "data.npz", "more": {"deep": 1}}}) == []
