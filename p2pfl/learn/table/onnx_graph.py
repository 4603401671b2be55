"""A model for tables as an ONNX graph that takes raw rows and includes the preprocessing.

Inputs are the columns by their names, (n, 1) each: numbers, and categories whose values are all numbers, as float32
with NaN for missing; other categories as strings, spelled as in the schema; any other string counts as missing. Outputs
are `label` (n,) and `probabilities` (n, classes), or `value` (n, 1) in the target's unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table.cells import all_numbers
from p2pfl.learn.table.scoring import TableModel

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
"""ONNX versions that are old enough for the runtimes in use."""
INSTALL = "pip install 'p2pfl-gossip[onnx]'"


def to_onnx(model: TableModel, metadata: dict[str, str]) -> bytes:
    """Return the content of the file. Raises UserError: the extra `onnx` is not installed."""
    needs_onnx()
    graph = OnnxGraph()
    parts = [
        graph.number(column, *model.schema.scale(column), model.schema.indicators) for column in model.schema.numeric
    ]
    parts += [graph.category(column, values) for column, values in model.schema.categories.items()]
    outputs = graph.layers(graph.add("Concat", parts, axis=1), model)
    graph.finish(outputs, model.schema.classes, *model.schema.scale(model.schema.target))
    return finished(graph, metadata)


def needs_onnx() -> None:
    """Raises UserError: the extra `onnx` is not installed."""
    try:
        import onnx  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise UserError("this format needs the package onnx", key="--format", value="onnx", allowed=INSTALL) from None


def finished(graph: OnnxGraph, metadata: dict[str, str]) -> bytes:
    """Return the content of the file with this graph."""
    from onnx import checker, helper  # noqa: PLC0415 - an extra

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
            found = self.input(column, is_text=False)
            equal = self.add("Equal", [found, self.constant(np.array([values], dtype=np.float32))])
            return self.add("Cast", [equal], to=1)
        found = self.input(column, is_text=True)
        texts = [value.encode() for value in values]
        spread = self.add("OneHotEncoder", [found], domain="ai.onnx.ml", cats_strings=texts, zeros=1)
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
