"""Which rows a node holds out for its own test: each by itself alone, so that one row more moves no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.crypto.identity import Identity
from p2pfl.learn import NodeContext
from p2pfl.learn.table import csv_table, held_out

SCHEMA = {"target": "y", "numeric": ["a"], "categories": {"w": ["x", "z"]}, "classes": ["no", "yes"]}
cells = st.tuples(
    st.sampled_from(["0", "-0", "1", "2.5", "", "NA"]), st.sampled_from(["x", "z", ""]), st.sampled_from(["no", "yes"])
)
tables = st.lists(cells, min_size=1, max_size=12)
keys = st.binary(min_size=32, max_size=32)


def sets_of(rows, key, **options):
    """The rows that a node with this key learns from, and those of its test, as multisets."""
    lines = ["a,w,y", *map(",".join, rows)]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mine.csv"
        file.write_text("\n".join(lines) + "\n")
        task = csv_table(**SCHEMA, holdout=0.3, **options)
        context = NodeContext(
            node=0,
            nodes=2,
            name="n",
            seed=0,
            base_dir=Path(folder),
            local={"path": file},
            secret=Identity(key).secret_for,
        )
        train, test = task.data(context)
    return counted(train), Counter() if test is None else counted(test)


def counted(pair):
    inputs, targets = pair
    return Counter((*row.tolist(), int(target)) for row, target in zip(inputs, targets, strict=True))


@given(tables, cells, st.integers(0, 12), keys)
def test_one_row_more_changes_the_training_set_by_that_row_if_it_is_not_held_out_and_else_by_nothing(
    rows, more, place, key
):
    (train, test), (trained, tested) = sets_of(rows, key), sets_of([*rows[:place], more, *rows[place:]], key)
    ((row, count),) = counted(read_one(more)).items()
    assert count == 1
    assert (trained - train, tested - test) in ((Counter([row]), Counter()), (Counter(), Counter([row])))
    assert not train - trained
    assert not test - tested


def read_one(row):
    with TemporaryDirectory() as folder:
        file = Path(folder) / "one.csv"
        file.write_text("a,w,y\n" + ",".join(row) + "\n")
        context = NodeContext(node=0, nodes=2, name="n", seed=0, base_dir=Path(folder), local={"path": file})
        return csv_table(**SCHEMA).data(context)[0]


@given(tables, keys, st.randoms())
def test_the_order_of_rows_changes_nothing(rows, key, random):
    assert sets_of(random.sample(rows, len(rows)), key) == sets_of(rows, key)


def test_how_many_rows_are_left_to_learn_from_does_not_depend_on_labels():
    """Over keys: a share is held out of different rows and of equal ones alike, whatever class they have."""
    draws = range(600)
    counts = {}
    for name, labels in {"one class": np.zeros(40), "rare": np.arange(40) % 20 == 0, "half": np.arange(40) % 2}.items():
        for inputs in (np.arange(40.0), np.zeros(40)):
            columns = {"x": inputs, "y": labels.astype(float)}
            kept = [held_out(columns, 0.2, key=key.to_bytes(32, "little")).sum() for key in draws]
            counts[name, bool(inputs.any())] = np.mean(kept), np.var(kept)
    for mean, variance in counts.values():
        assert mean == pytest.approx(8.0, abs=0.45)  # of 600 binomial draws: 4.4 standard errors
        assert variance == pytest.approx(6.4, rel=0.25)


def test_another_key_another_federation_or_another_share_hold_out_other_rows_and_more_share_only_more():
    columns = {"x": np.arange(200.0)}
    key = Identity(bytes(32)).secret_for("ward holdout 0")
    kept = held_out(columns, 0.2, key=key)
    for other in (
        Identity(bytes([1]) * 32).secret_for("ward holdout 0"),
        Identity(bytes(32)).secret_for("w holdout 0"),
    ):
        assert not np.array_equal(held_out(columns, 0.2, key=other), kept)
    assert not (kept & ~held_out(columns, 0.3, key=key)).any()
