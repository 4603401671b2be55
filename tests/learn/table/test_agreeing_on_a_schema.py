"""From tables of which nothing is known to one schema: what is guessed, what is told, and what all make of it."""

from __future__ import annotations

import itertools
import json
import tomllib

import numpy as np
import pytest

from p2pfl.errors import UserError
from p2pfl.learn.table import (
    KEYS,
    MOST_COLUMNS,
    guess_layout,
    look_at,
    make_layout,
    make_schema,
    merge,
    pack,
    propose,
    schema_text,
    unpack,
)


@pytest.fixture
def profile(tmp_path):
    """Look at a table given as columns of texts."""

    def act(columns, **layout):
        names, rows = list(columns), zip(*columns.values(), strict=True)
        path = tmp_path / "site.csv"
        path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]), encoding="utf-8")
        return look_at(path, make_layout({}, layout))

    return act


@pytest.fixture
def told(profile):
    """What a node tells of such a table."""
    return lambda node, columns, least=5, **layout: propose(
        profile(columns, **layout), node=node, federation="f", least_count=least
    )


def table(seed=0, rows=60, **changes):
    rng = np.random.default_rng(seed)
    return {
        "patient": [f"p{n}" for n in range(rows)],
        "age": rng.normal(60, 10, rows).round(3).tolist(),
        "cp": [1 + n % 3 for n in range(rows)],
        "ward": [("a", "b")[n % 2] for n in range(rows)],
        "num": [n % 2 for n in range(rows)],
    } | changes


def test_a_few_fractions_are_no_levels_as_a_few_whole_numbers_are(profile):
    columns = profile({"x": [0.5, 1.5, 2.5] * 20, "y": [1, 2, 3] * 20}).columns
    assert not columns["x"].levels
    assert set(columns["y"].levels) == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("cells", "kind", "codes"),
    [
        ([f"{n}.5" for n in range(40)], "number", ()),
        (["1", "1.0", "2", "NA"] * 10, "number", ()),
        (["low", "high", "?", "low"] * 10, "category", ()),
        ([f"said {n}" for n in range(40)], "text", ()),
        ([f"2021-03-{1 + n % 28:02}" for n in range(40)], "date", ()),
        (list(range(1001, 1041)), "identifier", ()),
        (["", "NA"] * 20, "empty", ()),
        ([*(f"{n}.5" for n in range(36)), *["-9"] * 4], "number", ("-9",)),
        ([*(f"{n}.5" for n in range(36)), *["999"] * 4], "number", ("999",)),
        ([*(f"{n}.5" for n in range(100, 136)), *["0"] * 4], "number", ("0",)),
        ([*(f"{n}.5" for n in range(36)), *["0"] * 4], "number", ()),
        (["0", "1", "1", "1"] * 10, "number", ()),
        (["0", "5", "6", "6"] * 10, "number", ()),
        ([*(f"{n}.5" for n in range(36)), *["unknown"] * 4], "number", ("unknown",)),
        ([*range(-20, 16), *["-9"] * 4], "number", ()),
    ],
)
def test_what_a_column_holds_is_guessed(profile, cells, kind, codes):
    column = profile({"x": cells, "y": cells}).columns["x"]
    assert (column.kind, column.codes) == (kind, codes)


def test_what_leaves_a_node_is_sums_and_counts_and_nothing_of_few_rows(told):
    rare = ["a"] * 30 + ["b"] * 26 + ["rare disease"] * 4
    made = told("north", table(ward=rare, seldom=["1.5"] * 3 + [""] * 57, note=[f"text {n} of it" for n in range(60)]))
    raw = pack(made).decode()
    for secret in ("rare disease", "p17", "text 3", "1.5,"):
        assert secret not in raw
    ward = made.columns["ward"]
    assert (ward.values, ward.rare) == ({"a": 30, "b": 26}, 4)
    assert made.columns["seldom"].count == 0
    ages = np.array(table()["age"])
    assert made.columns["age"].total == pytest.approx(ages.sum())
    assert made.columns["age"].squares == pytest.approx((ages**2).sum())


def test_more_columns_than_anybody_reads_are_not_proposed(told):
    columns = {f"c{n}": ["1", "2"] for n in range(MOST_COLUMNS)}
    assert len(told("north", columns, least=1).columns) == MOST_COLUMNS
    with pytest.raises(UserError, match=r"too many columns to agree on \(found 501\)"):
        told("north", columns | {"more": ["1", "2"]}, least=1)


def test_all_nodes_make_the_same_schema_of_the_proposals_and_it_scales_as_all_rows_together_would(told):
    sites = {name: table(seed, rows) for seed, (name, rows) in enumerate({"a": 40, "b": 75, "c": 60}.items())}
    sites["b"] = dict(reversed(sites["b"].items()))  # a file of its own order
    proposals = [told(name, columns) for name, columns in sites.items()]
    schemas = {merge(order, {"target": "num"}).schema.digest() for order in itertools.permutations(proposals)}
    assert len(schemas) == 1
    merged = merge(proposals, {"target": "num"})
    ages = np.concatenate([columns["age"] for columns in sites.values()])
    assert merged.schema.scale("age") == pytest.approx((ages.mean(), ages.std()), rel=1e-5)
    assert merged.schema.numeric == ("age",)
    assert merged.schema.categories == {"cp": ("1", "2", "3"), "ward": ("a", "b")}
    assert merged.schema.class_counts == {"0": 88, "1": 87}
    assert merged.notes["patient"].startswith("left out")


def test_a_schema_file_reads_back_as_the_schema(told):
    merged = merge([told("a", table(age=[f"{n}.5" for n in range(58)] + ["-9"] * 2))], {"target": "num"})
    document = tomllib.loads(schema_text(merged, origin="a test"))
    assert make_schema({key: value for key, value in document.items() if key in KEYS}) == merged.schema
    assert document["missing"] == {"age": ["-9"]}


@pytest.mark.parametrize(
    ("other", "left_out"),
    [
        ({"age": ["young", "old"] * 30}, "a has numbers, b has category"),
        ({"age": ["1999-02-01"] * 60}, "dates"),
        ({"age": ["50"] * 60}, None),
        ({}, None),
    ],
)
def test_columns_on_which_nodes_disagree_are_left_out_and_said(told, other, left_out):
    merged = merge([told("a", table()), told("b", table() | other)], {"target": "num"})
    assert ("age" in merged.schema.numeric) == (left_out is None)
    assert any(left_out in text for text in [*merged.warnings, *merged.notes.values()]) if left_out else True


def test_a_column_that_one_node_lacks_is_used_and_a_constant_one_is_not(told):
    lacking = {name: cells for name, cells in table().items() if name != "age"}
    merged = merge([told("a", table(same=[7] * 60)), told("b", lacking)], {"target": "num"})
    assert merged.schema.numeric == ("age",)
    assert "1 of 2 nodes lack it" in merged.notes["age"]
    assert any("same in every row" in text for text in merged.warnings)


def test_values_of_few_rows_count_as_missing_where_the_nodes_agreed(told):
    merged = merge([told("a", table(ward=["x"] * 29 + ["y"] * 28 + ["z"] * 3))], {"target": "num"})
    assert merged.schema.categories["ward"] == ("x", "y")
    assert merged.schema.unseen == "missing"


def test_what_the_task_declares_is_taken_as_it_is(told):
    proposals = [told("a", table(num=[n % 5 for n in range(60)]))]
    declared = {"target": "num", "positive": [1, 2, 3, 4], "numeric": ["age", "cp"]}
    schema = merge(proposals, declared).schema
    assert schema.numeric == ("age", "cp")
    assert schema.categories == {}
    assert schema.class_counts == {"negative": 12, "positive": 48}


def test_a_target_of_many_numbers_is_a_regression_and_one_of_texts_none(told):
    merged = merge([told("a", table(num=table(9)["age"]))], {"target": "num"})
    assert merged.schema.classes is None
    assert "num" in merged.schema.means
    for target, cells in (("num", ["1"] * 60), ("num", [f"t{n}" for n in range(60)]), ("nothing", [1] * 60)):
        with pytest.raises(UserError, match=r"task\.target"):
            merge([told("a", table(num=cells))], {"target": target})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a,b\n1,2.5\n", (",", ".", "utf-8")),
        (b"a;b\n1;2,5\n", (";", ",", "utf-8")),
        (b"a\tb\n1\t2.5\n", ("\t", ".", "utf-8")),
        ("a;größe\n1;2\n".encode("cp1252"), (";", ".", "cp1252")),
    ],
)
def test_how_a_file_is_written_is_guessed_from_its_beginning(tmp_path, raw, expected):
    (tmp_path / "t.csv").write_bytes(raw)
    found = guess_layout(tmp_path / "t.csv")
    assert (found.separator, found.decimal, found.encoding) == expected


@pytest.mark.parametrize(
    "column",
    [
        {"kind": "number", "count": -5},
        {"kind": "number", "count": 5, "total": 1, "squares": -1},
        {"kind": "category", "count": 5, "values": {"a" * 65: 5}},
        {"kind": "category", "count": 5, "values": {"a": 2**60}},
    ],
)
def test_what_no_honest_node_proposes_is_refused(told, column):
    with pytest.raises(ValueError, match=r"."):
        unpack(json.dumps(json.loads(pack(told("a", table()))) | {"columns": {"w": column}}).encode())
    assert unpack(pack(told("a", table()))) == told("a", table())
