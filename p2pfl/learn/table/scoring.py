"""A model for tables that stands alone: weights, and the way from raw rows to inputs. No federation, no torch.

`preprocessing` is what an exported file carries: `{"format": 1, "kind": "table", "schema": {...}, "missing": {...},
"layers": ["1", "3"]}`, where layers are the names of the linear ones in the `state_dict`, with ReLU between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table.encoding import encode_inputs
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import KEYS, Schema, make_schema

FORMAT = 1
KIND = "table"
Floats = NDArray[np.float32]


def preprocessing_of(schema: Schema, missing: Mapping[str, Iterable[str]], layers: Sequence[str]) -> dict[str, Any]:
    """The preprocessing stored beside the weights, as JSON values. `missing` codes are by column."""
    return {
        "format": FORMAT,
        "kind": KIND,
        "schema": schema.contents(),
        "missing": {column: sorted(codes) for column, codes in missing.items()},
        "layers": list(layers),
        "inputs": list(schema.inputs),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableModel:
    """A model. Layers are pairs of weights (out, in) and biases (out,)."""

    schema: Schema
    missing: Mapping[str, Sequence[str]]
    layers: tuple[tuple[Floats, Floats], ...]

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> TableModel:
        """Build a model. Raises UserError: the weights or the preprocessing are not those of such a model."""
        try:
            found = preprocessing["schema"]
            schema = make_schema({key: found[key] for key in KEYS if key in found}, prefix="schema.")
            names = [str(name) for name in preprocessing["layers"]]
            layers = tuple(
                (state[f"{name}.weight"].astype(np.float32), state[f"{name}.bias"].astype(np.float32)) for name in names
            )
            missing = {str(column): [str(code) for code in codes] for column, codes in preprocessing["missing"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            text = f"this model does not include how it reads tables: {error}"
            raise UserError(text, allowed="a node whose task is csv, or what `p2pfl export` made of it") from None
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
        """Logits (n, classes), or the standardized value (n, 1), of inputs (n, width)."""
        for place, (weight, bias) in enumerate(self.layers):
            inputs = inputs @ weight.T + bias
            if place < len(self.layers) - 1:
                inputs = np.maximum(inputs, 0.0)
        return inputs

    def scores(self, table: Table) -> dict[str, list[Any]]:
        """Score each row: its `prediction` is a class and the probability of each, or a number in the target's unit."""
        outputs = self.outputs(encode_inputs(table.columns, self.schema)).astype(np.float64)
        if self.schema.classes is None:
            mean, std = self.schema.scale(self.schema.target)
            return {"prediction": (outputs[:, 0] * std + mean).tolist()}
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        chosen = [self.schema.classes[place] for place in outputs.argmax(axis=1)]
        columns = {f"p({name})": shares[:, place].tolist() for place, name in enumerate(self.schema.classes)}
        return {"prediction": chosen, **columns}


def read_preprocessing(text: str) -> dict[str, Any] | None:
    """Read the preprocessing from a file's metadata; None if it is not a model of tables."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("kind") == KIND and found.get("format") == FORMAT else None
