"""Tables from `new` to `predict`, without code: what is made, what is said, and every mistake at once."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import tomllib

import numpy as np
import pytest

from p2pfl.config import load_config, load_node, node_file
from p2pfl.learn import to_safetensors
from p2pfl.learn.table import make_schema
from p2pfl.node import load_learner

SITES = ("north", "south", "west")


def rows(site, count=40):
    """`south` writes semicolons, decimal commas and 1.0; `west` lacks a column and has codes for missing."""
    rng = np.random.default_rng(SITES.index(site))
    for n in range(count):
        ill = int(rng.random() < 0.5)
        age = f"{rng.normal(50 + 10 * ill, 5):.2f}"
        cells = {
            "patient": f"{site}{n}",
            "age": age,
            "dose": f"{rng.normal():.3f}",
            "cp": 1 + n % 3,
            "num": ill * (1 + n % 4),
        }
        if site == "west":
            del cells["dose"]
            cells["age"] = "-9" if n % 7 == 0 else age
        if site == "south":
            cells = {name: f"{cell}.0" if name == "cp" else cell for name, cell in cells.items()}
        yield cells


@pytest.fixture
def sites(tmp_path):
    for site in SITES:
        found = list(rows(site))
        separator = ";" if site == "south" else ","
        lines = [separator.join(found[0]), *(separator.join(map(str, row.values())) for row in found)]
        text = "\n".join(lines)
        (tmp_path / f"{site}.csv").write_text(text.replace(".", ",") if site == "south" else text, encoding="utf-8")
    return [f"{site}.csv" for site in SITES]


@pytest.fixture
def hospitals(p2pfl, sites, tmp_path):
    outcome = p2pfl("new", "h", "--task", "csv", *sites, "--target", "num", "--positive", "1,2,3,4")
    assert outcome.code == 0, outcome.err
    return tmp_path / "h"


def trained(folder, site):
    """The file of a model, as `p2pfl export` writes it."""
    federation = load_config(folder)
    learner = load_learner(federation, load_node(node_file(federation, site), federation))
    vector = learner.initial()
    said = {"federation": "h", "node": site, "preprocessing": json.dumps(dict(learner.task.preprocessing))}
    file = folder.parent / "model.safetensors"
    file.write_bytes(to_safetensors(learner, vector, said))
    return file, learner, vector


def test_new_writes_what_it_guessed_and_says_what_is_odd(p2pfl, sites, tmp_path):
    outcome = p2pfl("new", "h", "--task", "csv", *sites, "--target", "num", "--positive", "1,2,3,4")
    for said in (
        "cp: 3 values in 120 cells",
        "age: 114 numbers, 6 missing; -9 taken as missing",
        "patient: left out",
        "no column 'dose'",
        "guesses",
    ):
        assert said in outcome.err
    schema = tomllib.loads((tmp_path / "h" / "schema.toml").read_text(encoding="utf-8"))
    assert schema["missing"] == {"age": ["-9"]}
    assert sum(schema["class_counts"].values()) == 120
    federation = load_config(tmp_path / "h")
    assert [member.name for member in federation.members] == list(SITES)
    south = load_node(node_file(federation, "south"), federation)
    assert south.data == {"path": str(tmp_path / "south.csv"), "separator": ";", "decimal": ","}


def test_a_key_that_is_off_in_a_schema_shows_its_default(p2pfl, sites, tmp_path):
    """Also one with three classes, two of which could be made one."""
    assert p2pfl("new", "three", "--task", "csv", *sites, "--target", "cp").code == 0
    text = (tmp_path / "three" / "schema.toml").read_text(encoding="utf-8")
    assert "\n# missing = " in text or "\n[missing]" in text
    before = tomllib.loads(text)
    after = tomllib.loads(re.sub(r"(?m)^# (?=[a-z_]+ = )", "", text))
    assert make_schema(after) == make_schema(before)
    assert after.get("missing", {}) == before.get("missing", {})


@pytest.mark.parametrize(("key", "line"), [("unseen", 'unseen = "missing"'), ("missing", "missing = { age = [-9] }")])
def test_a_key_of_a_schema_below_a_table_is_told_where_it_belongs(p2pfl, hospitals, key, line):
    file = hospitals / "schema.toml"
    kept = re.sub(r"(?m)^# missing = .*\n|(?s:\[missing\].*?\n\n)", "", file.read_text(encoding="utf-8"))
    kept = re.sub(rf"(?m)^{key} = .*\n", "", kept)
    file.write_text(f"{kept}{line}\n", encoding="utf-8")
    error = p2pfl("check", hospitals).err
    assert f"{key}: stands below [class_counts], and so is part of that table" in error
    assert "allowed: above the first [table]" in error


def test_check_tells_rows_gaps_classes_and_differences_of_every_site(p2pfl, hospitals):
    outcome = p2pfl("check", "h", "--format", "json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["mistakes"]) == (0, [])
    by_node = {row["node"]: row for row in report["tables"]}
    assert by_node["west"]["columns_absent"] == ["dose"]
    assert all(sum(row["classes"].values()) == row["rows"] == 40 for row in by_node.values())


def test_check_names_a_class_of_which_no_row_is_held_out_for_the_test(p2pfl, hospitals, tmp_path):
    file = tmp_path / "south.csv"
    head, *rows = file.read_text(encoding="utf-8").splitlines()
    sick = [row for row in rows if not row.endswith(";0")]
    well = [row for row in rows if row.endswith(";0")]
    file.write_text("\n".join([head, *well, sick[0]]) + "\n", encoding="utf-8")
    warnings = json.loads(p2pfl("check", "h", "--format", "json").out)["warnings"]
    said = [text for text in warnings if "held out" in text and text.startswith("south")]
    learner = load_learner(load_config("h"), load_node(node_file(load_config("h"), "south"), load_config("h")))
    kept = learner.test_set.targets.tolist() if learner.test_set else []  # chance decides
    assert said == [
        f"south: no row of the class {name!r} is held out for the test, of {trained.count(place)}"
        for place, name in enumerate(("negative", "positive"))
        for trained in [learner.train_set.targets.tolist()]
        if place not in kept
    ]


def test_check_names_every_class_where_no_row_at_all_is_held_out(p2pfl, hospitals):
    text = (hospitals / "federation.toml").read_text(encoding="utf-8")
    assert "\nholdout = 0.2 " in text
    (hospitals / "federation.toml").write_text(text.replace("\nholdout = 0.2 ", "\nholdout = 1e-9 "), encoding="utf-8")
    warnings = json.loads(p2pfl("check", "h", "--format", "json").out)["warnings"]
    assert len([text for text in warnings if "is held out for the test" in text]) == 2 * len(SITES)


def test_check_lists_the_mistakes_of_all_tables_at_once(p2pfl, hospitals, tmp_path):
    for site, old, new in (("north", "north3,", "north3,old"), ("south", "1,0;", "9,0;"), ("west", "west5", "west5,x")):
        file = tmp_path / f"{site}.csv"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    outcome = p2pfl("check", "h", "--format", "json")
    found = json.loads(outcome.out)["mistakes"]
    assert outcome.code == 2
    assert len(found) == 3
    for site, mistake in zip(SITES, found, strict=True):
        assert f"(node {site})" in mistake["message"]
        assert mistake["file"].endswith(f"{site}.csv")
        assert "line" in mistake["key"]


def test_an_exported_model_scores_raw_rows_without_the_federation(p2pfl, hospitals, tmp_path):
    model, learner, vector = trained(hospitals, "north")
    outcome = p2pfl("predict", model, "west.csv")
    found = list(csv.DictReader(io.StringIO(outcome.out)))
    assert outcome.code == 0
    assert len(found) == 40
    assert all(float(row["p(negative)"]) + float(row["p(positive)"]) == pytest.approx(1) for row in found)
    assert "no column 'dose'" in outcome.err
    scores = json.loads(p2pfl("predict", model, "north.csv", "--format", "json").out)
    right = np.mean(
        [
            row["prediction"] == ("positive" if line["num"] else "negative")
            for row, line in zip(scores, rows("north"), strict=True)
        ]
    )
    sets = [learner.evaluate(vector, part) for part in ("local", "test")]
    assert right == pytest.approx(sum(one.accuracy * one.samples for one in sets) / 40)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["h2", "--task", "csv", "north.csv", "--target", "num"], "two or more TABLEs"),
        (["h2", "--task", "csv", "north.csv", "south.csv"], "patient, age, dose, cp, num"),
        (["h2", "--task", "csv", "north.csv", "south.csv", "--target", "nun"], "lacks this column"),
        (["h2", "--task", "csv", "north.csv", "none.csv", "--target", "num"], "cannot be read"),
        (["h2", "--task", "csv", "north.csv", "north.csv", "--target", "num"], "named twice"),
        (["h2", "--task", "csv", "north.csv", "west.csv", "--target", "num", "--nodes", "a,b,c"], "2 names"),
        (["h2", "--task", "csv", "north.csv", "empty.csv", "--target", "num"], "empty.csv"),
        (["h2", "--task", "csv", "north.csv", "junk.csv", "--target", "num"], "not text"),
        (["h2", "north.csv", "south.csv"], "--task csv"),
        (["h2", "--target", "num"], "--task csv"),
    ],
)
def test_what_new_cannot_make_a_federation_of_is_one_error_and_leaves_nothing(p2pfl, sites, tmp_path, arguments, said):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "junk.csv").write_bytes(bytes(range(256)))
    outcome = p2pfl("new", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert not (tmp_path / "h2").exists()


def agreeing(folder, *lines):
    """Writes that the nodes agree on a schema, with these keys in [task]."""
    file, keys = folder / "federation.toml", "\n".join(['schema = "agreed"', 'target = "num"', *lines])
    file.write_text(re.sub(r'^schema = "schema\.toml".*$', keys, file.read_text(encoding="utf-8"), flags=re.MULTILINE))


def test_before_the_nodes_agree_check_reads_the_tables_that_are_here(p2pfl, hospitals, tmp_path):
    table = tmp_path / "west.csv"
    table.write_text(re.sub(r",\d$", ",", table.read_text(), count=2, flags=re.MULTILINE))
    agreeing(hospitals, "positive = [1, 2, 3, 4]")
    for command in ("check", "launch"):
        outcome = p2pfl(command, hospitals)
        assert outcome.code == 2
        assert "west.csv: lines 2, 3, column 'num': the target is missing (node west)" in outcome.err
        assert 'missing_target = "drop"' in outcome.err
    agreeing(hospitals)
    file = hospitals / "federation.toml"
    file.write_text(file.read_text().replace('target = "num"', 'target = "num"\nmissing_target = "drop"'))
    assert p2pfl("check", hospitals).code == 0


def test_a_key_that_contradicts_what_the_nodes_agreed_on_says_how_to_agree_anew(p2pfl, hospitals):
    for site in SITES:
        (hospitals / site / "state").mkdir()
        shutil.copy(hospitals / "schema.toml", hospitals / site / "state" / "schema.toml")
    agreeing(hospitals, "positive = [1, 2, 3, 4]", 'missing_target = "drop"')
    outcome = p2pfl("check", hospitals)
    assert outcome.code == 2
    assert "task.missing_target: the nodes have agreed on another value" in outcome.err
    assert "to agree anew, remove the state folder of every node" in outcome.err


def test_values_that_differ_in_case_alone_are_remarked_and_the_line_makes_them_one(p2pfl, tmp_path):
    for site in ("a", "b"):
        lines = [f"{n % 50},{'FfMm'[n % 4]},{('yes', 'Yes', 'no')[n % 3]}" for n in range(60)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,sex,ill", *lines]))
    said = p2pfl("new", "h", "--task", "csv", "a.csv", "b.csv", "--target", "ill").err
    for text in (
        "sex: F and f, M and m count as different values",
        "ill: Yes and yes count",
        "write ignore_case = true",
    ):
        assert text in said
    file = tmp_path / "h" / "schema.toml"
    file.write_text(file.read_text().replace("# ignore_case = false", "ignore_case = true"))
    assert p2pfl("check", "h").code == 0, p2pfl("check", "h").err
    schema = make_schema(tomllib.loads(file.read_text()))
    assert (schema.categories, schema.classes) == ({"sex": ("f", "m")}, ("yes", "no"))
    assert schema.class_counts == {"yes": 80, "no": 40}


def test_check_shows_what_nodes_would_give_to_agree_on_a_schema(p2pfl, hospitals):
    agreeing(hospitals, "positive = [1, 2, 3, 4]")
    outcome = p2pfl("check", "h", "--format", "json")
    rows = json.loads(outcome.out)["tables"]
    assert {row["node"] for row in rows} == set(SITES)
    assert {"kind", "count", "missing", "sum", "sum of squares", "values", "rare"} <= rows[0].keys()
    assert not any(f"{site}3" in outcome.out for site in SITES)
    assert "nothing is used but this" in p2pfl("check", "h", "--all").out


def test_a_node_is_scored_by_its_folder_and_its_own_table_is_no_test(p2pfl, hospitals, trained):
    trained(hospitals, "south", 1)
    outcome = p2pfl("score", hospitals / "south", "north.csv", "--format", "json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["rows"] == 40
    assert "learned from" not in outcome.err
    assert "learned from rows of this very table" in p2pfl("score", hospitals / "south", "south.csv").err
