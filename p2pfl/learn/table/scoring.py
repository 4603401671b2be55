"""A stand-alone model for tables: the weights, and the preprocessing from raw rows to inputs. It needs neither the
federation nor torch. It scores rows, is tested on a table with targets, and becomes an ONNX graph.

`preprocessing` is what an exported file carries: `{"format": 1, "kind": "table", "schema": {...}, "missing": {...},
"layers": ["1", "3"]}`, where `layers` has the names of the linear layers in the `state_dict`, with ReLU between them.

The graph takes raw rows. Its inputs are the columns by their names, (n, 1) each: numbers, and categories whose values
are all numbers, as float32 with NaN for missing; other categories as strings, spelled as in the schema; any other
string counts as missing. Outputs are `label` (n,) and `probabilities` (n, classes), or `value` (n, 1) in the target's
unit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.metrics import BUILT_IN, Metric
from p2pfl.learn.table.reading import Table, encode_inputs
from p2pfl.learn.table.rows import all_numbers
from p2pfl.learn.table.schema import KEYS, Schema, make_schema, metrics_of, usual_metrics

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
    contents = preprocessing["schema"]
    schema = make_schema({key: contents[key] for key in KEYS if key in contents}, prefix="schema.")
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
        widths = [schema.width, *(bias.size for _, bias in layers)]
        shapes = [array.shape for layer in layers for array in layer]
        fitting = [shape for into, out in pairwise(widths) for shape in ((out, into), (out,))]
        if not layers or widths[-1] != schema.outputs or shapes != fitting:
            raise UserError("the weights do not fit the schema", value=shapes)
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
        value = json.loads(text) if text else None
    except UNREADABLE:
        return None
    return value if isinstance(value, dict) and value.get("kind") == KIND and value.get("format") == FORMAT else None


# -- a test on a table with targets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutputs:
    """The outputs and targets of all rows: logits (n, classes) and labels (n,), or numbers (n, 1) in their unit."""

    schema: Schema
    outputs: NDArray[np.float64]
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def class_counts(self) -> dict[str, int] | None:
        """Count the rows in each class; return None if the target is a number."""
        if self.schema.classes is None:
            return None
        counts = np.bincount(self.targets, minlength=len(self.schema.classes))
        return dict(zip(self.schema.classes, counts.tolist(), strict=True))

    def figures(self) -> Iterator[tuple[Metric, dict[str, Any]]]:
        """Yield every metric that applies to such a target, the usual main one first, with its value and interval: None
        where it is undefined, or has none.
        """
        for name in dict.fromkeys((*usual_metrics(self.schema), *metrics_of(self.schema))):
            metric = BUILT_IN[name]
            value: float | None = metric(self.outputs, self.targets)
            if value is None or not math.isfinite(value):
                value = None
            interval = metric.interval(self.outputs, self.targets) if value is not None and metric.interval else None
            low, high = interval or (None, None)
            better = {"higher_is_better": metric.higher_is_better}
            yield metric, {"metric": name, "value": value, "low": low, "high": high} | better

    def why_undefined(self) -> str:
        """Say why a metric is undefined here."""
        if not np.isfinite(self.outputs).all():
            return "the model's outputs are not finite"
        counts = self.class_counts
        if counts is None:
            return "every row has the same target"
        there = [name for name, count in counts.items() if count]
        return f"every row has the class {there[0]!r}" if len(there) == 1 else "no row has the class"


def tested(model: ScoresTables, table: Table) -> TableOutputs:
    """Compute the outputs for `table`, which was read for testing, so that every row has a target."""
    outputs, targets = model.outputs_for(table), table.columns[model.schema.target]
    is_number = model.schema.classes is None
    whole = targets.reshape(-1, 1) if is_number else targets.astype(np.int64)
    return TableOutputs(schema=model.schema, outputs=outputs, targets=whole)


# -- the ONNX graph ----------------------------------------------------------------------------------------------------

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
"""ONNX versions that are old enough for the runtimes in use."""
INSTALL = "pip install '.[onnx]' in a checkout of p2pfl"


def to_onnx(model: TableModel, metadata: dict[str, str]) -> bytes:
    """Return the content of the file. Raises UserError: the extra `onnx` is not installed."""
    try:
        from onnx import checker, helper  # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError("this format needs the package onnx", key="--format", value="onnx", allowed=INSTALL) from None
    graph = OnnxGraph()
    parts = [
        graph.number(column, *model.schema.scale(column), model.schema.indicators) for column in model.schema.numeric
    ]
    parts += [graph.category(column, values) for column, values in model.schema.categories.items()]
    outputs = graph.layers(graph.add("Concat", parts, axis=1), model)
    graph.finish(outputs, model.schema.classes, *model.schema.scale(model.schema.target))
    made = helper.make_model(
        helper.make_graph(graph.nodes, "p2pfl", graph.inputs, graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=IR_VERSION,
        producer_name="p2pfl",
    )
    helper.set_model_props(made, metadata)
    checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content


@dataclass(slots=True)
class OnnxGraph:
    """The graph's nodes, in order. Every method returns the name of its result."""

    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, inputs: list[str], *, name: str = "", domain: str = "", **attributes: Any) -> str:
        from onnx import helper  # noqa: PLC0415 - an extra

        result = name or f"#{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], domain=domain, **attributes))
        return result

    def constant(self, value: NDArray[Any]) -> str:
        from onnx import numpy_helper  # noqa: PLC0415 - an extra

        name = f"#constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def input(self, column: str, *, is_text: bool) -> str:
        """Add a column of raw cells, as (n, 1)."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra

        kind = TensorProto.STRING if is_text else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(column, kind, [None, 1]))
        return column

    def number(self, column: str, mean: float, std: float, indicators: bool) -> str:  # noqa: FBT001 - the schema's word
        """Add a numeric column, as (n, 2), or (n, 1) without an indicator."""
        value = self.input(column, is_text=False)
        is_missing = self.add("IsNaN", [value])
        centered = self.add("Sub", [value, self._floats(mean)])
        scaled = self.add("Div", [centered, self._floats(std)])
        known = self.add("Where", [is_missing, self._floats(0.0), scaled])
        if not indicators:
            return known
        return self.add("Concat", [known, self.add("Cast", [is_missing], to=1)], axis=1)

    def category(self, column: str, values: tuple[str, ...]) -> str:
        """Add a categorical column, as (n, values)."""
        if all_numbers(values):
            cells = self.input(column, is_text=False)
            equal = self.add("Equal", [cells, self.constant(np.array([values], dtype=np.float32))])
            return self.add("Cast", [equal], to=1)
        cells = self.input(column, is_text=True)
        texts = [value.encode() for value in values]
        spread = self.add("OneHotEncoder", [cells], domain="ai.onnx.ml", cats_strings=texts, zeros=1)
        return self.add("Squeeze", [spread, self.constant(np.array([1]))])

    def layers(self, inputs: str, model: TableModel) -> str:
        for place, (weight, bias) in enumerate(model.layers):
            inputs = self.add("Gemm", [inputs, self.constant(weight), self.constant(bias)], transB=1)
            if place < len(model.layers) - 1:
                inputs = self.add("Relu", [inputs])
        return inputs

    def finish(self, outputs: str, classes: tuple[str, ...] | None, mean: float, std: float) -> None:
        """Add what the graph returns: of logits (n, classes), or of a number (n, 1) that is to be scaled."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra

        if classes is None:
            scaled = self.add("Mul", [outputs, self._floats(std)])
            self.add("Add", [scaled, self._floats(mean)], name="value")
            self.outputs = [helper.make_tensor_value_info("value", TensorProto.FLOAT, [None, 1])]
            return
        self.add("Softmax", [outputs], name="probabilities", axis=1)
        place = self.add("ArgMax", [outputs], axis=1, keepdims=0)
        self.add("Gather", [self.constant(np.array(classes, dtype=object)), place], name="label")
        self.outputs = [
            helper.make_tensor_value_info("label", TensorProto.STRING, [None]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, len(classes)]),
        ]

    def _floats(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))
