"""A schema from names and sums is the same as from all nodes' own statistics, and sums of few nodes are not made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from p2pfl.errors import UserError
from p2pfl.learn.table import (
    LEAST_HOLDERS,
    WITHIN,
    ColumnNames,
    ColumnProposal,
    FigureLayout,
    Proposal,
    TableNames,
    look_at,
    make_layout,
    merge,
    names_in,
    pack,
    propose,
    unpack_names,
)

SITES = ("a", "b", "c", "d")


def table(seed, rows, scale=10.0):
    rng = np.random.default_rng(seed)
    return {
        "patient": [f"p{n}" for n in range(rows)],
        "age": rng.normal(60, scale, rows).round(3).tolist(),
        "tiny": (rng.normal(0, 1, rows) * 1e-12).tolist(),
        "huge": (rng.lognormal(0, 3, rows) * 1e20).tolist(),
        "mixed": rng.normal(0, 1, rows).tolist() if seed else [f"{n}.5" for n in range(rows - 2)] + ["-9"] * 2,
        "cp": [1 + n % 3 for n in range(rows)],
        "ward": [("a", "b")[n % 2] for n in range(rows - 3)] + [f"rare {seed}"] * 3,
        "note": [f"text {n} of it" for n in range(rows)],
        "gaps": ["1.5" if n % 4 else "" for n in range(rows - 1)] + ["2"],
        "num": [n % 5 for n in range(rows)],
    }


@pytest.fixture
def told(tmp_path):
    def act(changes=None):
        found = []
        for seed, site in enumerate(SITES):
            columns = table(seed, 60 + 7 * seed) | ((changes or {}).get(site, {}))
            columns = {name: cells for name, cells in columns.items() if cells is not None}
            path = tmp_path / f"{site}.csv"
            rows = zip(*columns.values(), strict=True)
            path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
            found.append(propose(look_at(path, make_layout({}, {})), node=site, federation="f"))
        return found

    return act


def summed(proposals, declared):
    layout = FigureLayout([unpack_names(pack(names_in(one))) for one in proposals], declared)
    vectors = [layout.figures(one) for one in proposals]
    assert all(WITHIN[0] <= vector.min() <= vector.max() <= WITHIN[1] for vector in vectors)
    return layout.merge(sum(vectors))


DECLARED = [
    {"target": "num"},
    {"target": "num", "positive": [1, 2, 3, 4]},
    {"target": "age"},
    {"target": "ward", "numeric": ["age", "gaps"]},
    {"target": "num", "numeric": ["age"], "categories": {"cp": [1, 2, 3]}, "means": {"age": 1.0}, "stds": {"age": 2.0}},
]


@pytest.mark.parametrize("declared", DECLARED)
def test_the_schema_is_the_same_as_from_statistics_that_all_see(told, declared):
    proposals = told()
    expected = merge(proposals, declared)
    for order in itertools.islice(itertools.permutations(proposals), 0, 24, 7):
        found = summed(order, declared)
        assert found.contents == expected.contents
        assert found.notes == expected.notes
        assert found.schema.digest() == expected.schema.digest()


def test_kinds_that_differ_are_left_out_as_before(told):
    changes = {"b": {"age": ["young", "old"] * 33 + ["old"]}, "c": {"tiny": ["1999-02-01"] * 74}}
    proposals = told(changes)
    assert summed(proposals, {"target": "num"}).contents == merge(proposals, {"target": "num"}).contents


def test_names_have_no_figure(told):
    for one in told():
        raw = pack(names_in(one)).decode()
        assert not any(f"{number}" in raw for number in (one.columns["age"].count, one.columns["age"].total))
        assert "rare" not in raw
        assert '"ward":{"kind":"category","levels":true,"values":["a","b"]}' in raw


def test_a_column_of_two_nodes_is_not_summed_and_its_scale_may_be_declared(told):
    changes = {"a": {"age": None, "ward": None}, "b": {"age": None, "ward": None}}
    proposals = told(changes)
    layout = FigureLayout(map(names_in, proposals), {"target": "num"})
    one, two = (layout.figures(each) for each in (proposals[3], told({**changes, "d": {"age": [50.0] * 81}})[3]))
    assert (one == two).all()
    found = summed(proposals, {"target": "num"})
    assert "age" not in found.schema.numeric
    assert found.schema.categories["ward"] == ("a", "b")
    assert found.schema.unseen == "missing"
    assert any(text.startswith("age: left out, as too few nodes have it") for text in found.warnings)
    scaled = {"target": "num", "means": {"age": 60.0}, "stds": {"age": 10.0}}
    assert summed(proposals, scaled).schema.scale("age") == (60.0, 10.0)


def test_a_class_of_two_nodes_leaves_the_counts_of_classes_out(told):
    ill = {"num": [n % 2 for n in range(60)]}
    proposals = told({"a": ill, "b": {"num": [n % 2 for n in range(67)]}})
    found = summed(proposals, {"target": "num"})
    assert found.contents["classes"] == ["0", "1", "2", "3", "4"]
    assert "class_counts" not in found.contents
    assert any("no class_counts" in text for text in found.warnings)
    together = {"target": "num", "positive": [1, 2, 3, 4]}
    assert summed(proposals, together).contents == merge(proposals, together).contents


def test_sums_that_no_tables_have_are_refused(told):
    proposals = told()
    layout = FigureLayout(map(names_in, proposals), {"target": "num"})
    wrong = sum(layout.figures(one) for one in proposals)
    wrong[0] = -1
    with pytest.raises(ValueError, match="below 0"):
        layout.merge(wrong)
    with pytest.raises(ValueError, match="were asked for"):
        layout.merge(wrong[:-1])


def test_what_is_too_large_to_be_summed_is_named():
    columns = {"x": ColumnProposal(kind="number", count=9, total=1e160, squares=1e300)}
    proposals = [Proposal(node=f"n{n}", federation="f", columns=columns) for n in range(LEAST_HOLDERS)]
    layout = FigureLayout(map(names_in, proposals), {"target": "x"})
    with pytest.raises(UserError, match="x: 1e\\+160 cannot be summed"):
        layout.figures(proposals[0])


def names(**columns):
    return TableNames(node="a", federation="f", columns=columns)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b'{"node":"a","federation":"f","columns":{},"format":1}',
        pack(names(x=ColumnNames(kind="number", values=("1",)))),
        pack(names(x=ColumnNames(kind="text", levels=True))),
        pack(names(x=ColumnNames(kind="category", levels=True, values=("1", "1")))),
        pack(names(x=ColumnNames(kind="category", levels=True, values=("1" * 65,)))),
        pack(names(**{f"c{n}": ColumnNames(kind="empty") for n in range(501)})),
        b" " * (1 << 19),
    ],
)
def test_what_no_honest_node_names_is_refused(raw):
    with pytest.raises(ValueError, match=r"."):
        unpack_names(raw)
