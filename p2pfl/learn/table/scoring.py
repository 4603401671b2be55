"""A stand-alone model for tables: the weights, and the preprocessing from raw rows to inputs. It needs neither the
federation nor torch.

`preprocessing` is what an exported file carries: `{"format": 1, "kind": "table", "schema": {...}, "missing": {...},
"layers": ["1", "3"]}`, where `layers` has the names of the linear layers in the `state_dict`, with ReLU between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.encoding import encode_inputs
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import KEYS, Schema, make_schema

FORMAT = 1
KIND = "table"
Floats = NDArray[np.float32]


def preprocessing_of(schema: Schema, missing: Mapping[str, Iterable[str]], layers: Sequence[str]) -> dict[str, Any]:
    """Return the preprocessing to store with the weights, as JSON values. `missing` has codes by column."""
    return reading_of(schema, missing) | {"layers": list(layers), "inputs": list(schema.inputs)}


def reading_of(schema: Schema, missing: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Return what every kind of model stores about the tables that it reads."""
    codes = {column: sorted(texts) for column, texts in missing.items()}
    return {"format": FORMAT, "kind": KIND, "schema": schema.contents(), "missing": codes}


def schema_and_codes(preprocessing: Mapping[str, Any]) -> tuple[Schema, dict[str, list[str]]]:
    """Return what `reading_of` has stored. Raises KeyError, TypeError, AttributeError, UserError: it is not that."""
    found = preprocessing["schema"]
    schema = make_schema({key: found[key] for key in KEYS if key in found}, prefix="schema.")
    return schema, {str(column): [str(code) for code in codes] for column, codes in preprocessing["missing"].items()}


class ScoresTables:
    """A stand-alone model for tables, of whatever kind."""

    schema: Schema
    missing: Mapping[str, Sequence[str]]

    def outputs_for(self, table: Table) -> NDArray[np.float64]:
        """Return the logits (n, classes), or the numbers (n, 1) in the target's unit, for the rows of a table."""
        raise NotImplementedError

    def scores(self, table: Table) -> dict[str, list[Any]]:
        """Score each row: return its `prediction`, a class, with the probability of each class, or a number in the
        target's unit.
        """
        outputs = self.outputs_for(table)
        if self.schema.classes is None:
            return {"prediction": outputs[:, 0].tolist()}
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        chosen = [self.schema.classes[place] for place in outputs.argmax(axis=1)]
        columns = {f"p({name})": shares[:, place].tolist() for place, name in enumerate(self.schema.classes)}
        return {"prediction": chosen, **columns}


def unreadable(error: Exception) -> UserError:
    text = f"this model does not include how it reads tables: {error}"
    return UserError(text, allowed="a node whose task is csv, or what `p2pfl export` made of it")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableModel(ScoresTables):
    """A linear model or an MLP. Each layer is a pair of weights (out, in) and biases (out,)."""

    schema: Schema
    missing: Mapping[str, Sequence[str]]
    layers: tuple[tuple[Floats, Floats], ...]

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> TableModel:
        """Build a model. Raises UserError: the weights or the preprocessing do not belong to such a model."""
        try:
            schema, missing = schema_and_codes(preprocessing)
            names = [str(name) for name in preprocessing["layers"]]
            layers = tuple(
                (state[f"{name}.weight"].astype(np.float32), state[f"{name}.bias"].astype(np.float32)) for name in names
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise unreadable(error) from None
        widths = [schema.width, *(len(bias) for _, bias in layers)]
        if (
            not layers
            or widths[-1] != schema.outputs
            or any(
                weight.shape != (out, into) for (weight, _), into, out in zip(layers, widths, widths[1:], strict=False)
            )
        ):
            raise UserError("the weights do not fit the schema", value=[w.shape for w, _ in layers])
        return cls(schema=schema, missing=missing, layers=layers)

    def outputs(self, inputs: Floats) -> Floats:
        """Return the logits (n, classes) or the standardized value (n, 1) for inputs (n, width)."""
        for place, (weight, bias) in enumerate(self.layers):
            inputs = inputs @ weight.T + bias
            if place < len(self.layers) - 1:
                inputs = np.maximum(inputs, 0.0)
        return inputs

    def outputs_for(self, table: Table) -> NDArray[np.float64]:
        outputs = self.outputs(encode_inputs(table.columns, self.schema)).astype(np.float64)
        if self.schema.classes is not None:
            return outputs
        mean, std = self.schema.scale(self.schema.target)
        return outputs * std + mean


def read_preprocessing(text: str) -> dict[str, Any] | None:
    """Read the preprocessing from a file's metadata; return None if it is not a model for tables."""
    try:
        found = json.loads(text) if text else None
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) and found.get("kind") == KIND and found.get("format") == FORMAT else None
