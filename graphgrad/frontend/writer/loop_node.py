"""Loop nodes: states that go from one step to the next, and what each step leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from .graph import GraphWriter, elem_type

Step = Callable[[str, list[str]], tuple[list[str], list[str]]]
"""Given the number of a step and the states before it, the states after it and what it leaves."""


def loop_node(
    graph: GraphWriter,
    label: str,
    steps: str,
    first: Sequence[str],
    dtypes: Sequence[str],
    step: Step,
) -> list[str]:
    """The states after all steps, then what the steps leave, stacked along a first axis.

    Parameters
    ----------
    graph : GraphWriter
    label : str
        What the loop is named by.
    steps : str
        How many, an int64 scalar.
    first : sequence of str
        The states before.
    dtypes : sequence of str
        Of the states, and of what a step leaves.
    step : callable
        Its results are values of the loop's own nodes.
    """
    number, going, *carried = (graph.name(f"{label}/{n}") for n in ("step", "going", *first))
    with graph.inside() as nodes:
        new, left = step(number, carried)
        results = [graph.node("Identity", name) for name in [going, *new, *left]]
    inputs = [_scalar(number, "int64"), _scalar(going, "bool")]
    inputs += _of_dtypes(carried, dtypes[: len(first)])
    outputs = [_scalar(results[0], "bool"), *_of_dtypes(results[1:], dtypes)]
    body = helper.make_graph(nodes, label, inputs, outputs)
    node = graph.node("Loop", steps, graph.constant(True), *first, outputs=len(dtypes), body=body)
    return [node] if isinstance(node, str) else list(node)


def _scalar(name: str, dtype: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type(dtype), [])


def _of_dtypes(names: Sequence[str], dtypes: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """The types of tensors whose shapes are not said."""
    return [
        helper.make_tensor_value_info(name, elem_type(dtype), None)
        for name, dtype in zip(names, dtypes, strict=True)
    ]
