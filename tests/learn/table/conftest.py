"""Tables as text, and what is read of them."""

from __future__ import annotations

import pytest

from p2pfl.learn.table import make_layout, make_schema, read_table

SCHEMA = {
    "target": "num",
    "numeric": ["age", "chol"],
    "categories": {"cp": [1, 2, 3], "ward": ["North", "south"]},
    "positive": [1, 2, 3, 4],
}


@pytest.fixture
def read(tmp_path):
    """Read a table from its text: `schema` and `layout` change the usual ones."""

    def act(text, *, layout=None, scoring=False, encoding="utf-8", **schema):
        path = tmp_path / "site.csv"
        path.write_bytes(text.encode(encoding))
        return read_table(path, make_schema(SCHEMA | schema), make_layout({}, layout or {}), scoring=scoring)

    return act
