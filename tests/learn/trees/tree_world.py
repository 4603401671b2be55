"""Nodes that grow trees together in one process: their parts are added by numpy, as a secure sum would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from p2pfl.learn.table import Schema, make_schema
from p2pfl.learn.trees import SiteRows, TreeGrowth, TreePart, TreeSettings, as_cells, tree_settings

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Cells (columns, n), targets (n,) and who is held out (n,)."""


def schema_of(columns: int, *, classes: int = 2, categories: Sequence[int] = ()) -> Schema:
    """Return a schema of numeric columns, categories of so many values, and a target (0 classes: a number)."""
    numeric = [f"x{place}" for place in range(columns)]
    named = {f"c{place}": list(range(size)) for place, size in enumerate(categories)}
    contents = {"target": "y", "numeric": numeric, "categories": named}
    return make_schema(contents | ({"classes": list(range(classes))} if classes else {}))


def settings_of(schema: Schema, **options) -> TreeSettings:
    return tree_settings(schema, options)


def site_of(rows: Rows) -> SiteRows:
    cells, targets, held = rows
    return SiteRows(as_cells(cells), targets, held)


def share(rows: Rows, owners: np.ndarray, nodes: int) -> list[Rows]:
    """Give each node the rows that `owners` (n,) says."""
    return [tuple(array[..., owners == node] for array in rows) for node in range(nodes)]


def sum_of(parts: Sequence[TreePart]) -> dict[str, np.ndarray]:
    for part in parts:
        assert (part.step, part.label) == (parts[0].step, parts[0].label)
        for array in part.arrays.values():
            assert array.dtype == np.int64
            assert array.min(initial=0) >= 0
    return {name: sum(part.arrays[name] for part in parts) for name in parts[0].arrays}


def grow(
    schema: Schema,
    settings: TreeSettings,
    sites: Sequence[Rows],
    *,
    after: Callable[[list[TreeGrowth]], None] | None = None,
) -> list[TreeGrowth]:
    """Let the nodes grow their trees to the end. `after` may look at them, or replace them, after each step."""
    nodes = [TreeGrowth.begin(schema, settings, site_of(rows)) for rows in sites]
    while not nodes[0].done:
        total, most = sum_of([node.next_part() for node in nodes]), nodes[0].most(len(nodes))
        assert {name: each.shape for name, each in most.items()} == {name: each.shape for name, each in total.items()}
        assert all((total[name] <= most[name]).all() for name in total)
        for node in nodes:
            node.take(total, len(nodes))
        if after is not None:
            after(nodes)
    return nodes
