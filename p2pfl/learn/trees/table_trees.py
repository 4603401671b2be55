"""Trees as a stand-alone model for tables: what `p2pfl predict`, `score` and `export` read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.table.scoring import ScoresTables, reading_of, schema_and_codes, unreadable
from p2pfl.learn.trees.bins import raw_cells
from p2pfl.learn.trees.forest import Forest

FOREST = "forest"
"""The name of the array with the packed trees."""


def preprocessing_of_trees(schema: Schema, missing: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return what is stored with the trees, as JSON values. `missing` has codes by column."""
    columns = [*schema.numeric, *schema.categories]
    return reading_of(schema, missing) | {"trees": FOREST, "inputs": columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrees(ScoresTables):
    schema: Schema
    missing: Mapping[str, Sequence[str]]
    forest: Forest

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> TableTrees:
        """Build a model. Raises UserError: the trees or the preprocessing do not belong to one, or none has grown."""
        try:
            schema, missing = schema_and_codes(preprocessing)
            packed = state[str(preprocessing["trees"])].tobytes()
        except (KeyError, TypeError, AttributeError) as error:
            raise unreadable(error) from None
        if not packed:
            raise UserError("no tree has grown yet: the nodes have not agreed on the bins")
        try:
            forest = Forest.unpack(packed)
        except ValueError as error:
            raise UserError(str(error)) from None
        if not forest.fits(schema):
            raise UserError("the trees do not fit the schema", value=len(forest.grid.edges))
        return cls(schema=schema, missing=missing, forest=forest)

    def outputs_for(self, table: Table) -> NDArray[np.float64]:
        return self.forest.outputs(raw_cells(table.columns, self.schema))
