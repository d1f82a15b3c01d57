"""What TVM's importer asks for each node: a converter of graphgrad's, and where its values are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tvm
from torch import fx
from tvm import relax

from ...errors import ModelError
from ...ir.provenance import span_of
from ...ir.tensor import Emitter, Tensor, dimension_text, expression_of
from ..origins import Origins
from .arrays import computed
from .node import CONVERTERS, Node

_NOTHING = (
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "sym_constrain_range_for_size",
)
"""Operators that check, and compute nothing."""

_OF_EXTENTS = {operator.mul, operator.add, operator.sub, operator.floordiv, operator.mod}


class Translation:
    """The translation of the nodes of one graph.

    Parameters
    ----------
    graph : fx.Graph

    Raises
    ------
    ModelError
        Some operators have no converter; all of them are listed.
    """

    def __init__(self, graph: fx.Graph):
        self._nodes = [node for node in graph.nodes if node.op == "call_function"]
        self._values: dict[str, Any] = {}
        self._origins: Origins | None = None
        self.training_dropouts: list[str] = []
        missing: dict[str, list[str]] = {}
        for node in self._nodes:
            if not _is_known(node):
                missing.setdefault(node.target.__name__, []).append(node.name)
        if missing:
            raise ModelError(
                "operators of PyTorch that cannot be imported: "
                + "; ".join(f"{name} ({', '.join(nodes)})" for name, nodes in missing.items())
            )

    def converters(self) -> dict[str, Callable[[fx.Node, Any], Any]]:
        """The table for TVM's importer: by the names of this graph's operators."""
        return {node.target.__name__: self._translate for node in self._nodes}

    def written(self, function: relax.Function) -> relax.Function:
        """The function that the importer has built, with spans, and nodes' names for values."""
        return function if self._origins is None else self._origins.written(function)

    def _translate(self, node: fx.Node, importer: Any) -> Any:
        """The Relax value of a node, or a list of those."""
        builder = importer.block_builder
        if self._origins is None:
            parameters = [v for n, v in importer.env.items() if n.op == "placeholder"]
            self._origins = Origins(builder, parameters)
        emitter = Emitter(builder)
        try:
            with emitter.at(None, node.name):
                result = self._converted(node, importer, emitter)
        except ModelError as error:
            raise ModelError(f"{_label(node)} cannot be imported: {error}") from error
        except Exception as error:  # of any type, from ops that refuse what they are given
            message = str(error).strip().splitlines()
            raise ModelError(
                f"{_label(node)} cannot be imported: {message[-1] if message else error!r}"
            ) from error
        values = result if isinstance(result, list) else [result]
        for value in values:
            if isinstance(value, relax.Var):
                self._origins.add(value, node.name, span_of(node.name, node.target.__name__))
        return result

    def _converted(self, node: fx.Node, importer: Any, emitter: Emitter) -> Any:
        target: Any = node.target
        if target is operator.getitem:
            source, index = node.args
            return importer.env[source][index]
        if target in _OF_EXTENTS:
            return computed(target, [importer.env.get(a, a) for a in node.args])
        if target.__name__.partition(".")[0] in _NOTHING:
            return None
        if target.__name__ == "dropout.default" and node.args[2]:
            self.training_dropouts.append(node.name)
        arguments = [_lifted(value, importer.env, emitter) for value in _arguments(node)]
        result = CONVERTERS[target.__name__](Node(node, emitter), *arguments)
        _check(node, result)
        if isinstance(result, list):
            return [expression_of(part) for part in result]
        return expression_of(result) if isinstance(result, Tensor) else result


def _is_known(node: fx.Node) -> bool:
    target: Any = node.target
    name = target.__name__
    return (
        name in CONVERTERS
        or target is operator.getitem
        or target in _OF_EXTENTS
        or name.partition(".")[0] in _NOTHING
    )


def _label(node: fx.Node) -> str:
    return f"node {node.name!r} ({node.target.__name__})"


def _arguments(node: fx.Node) -> list[Any]:
    """The arguments in the order of the operator's schema, those that are left out by default."""
    given = list(node.args)
    schema = node.target._schema.arguments
    for argument in schema[len(given) :]:
        given.append(node.kwargs.get(argument.name, argument.default_value))
    return given


def _lifted(value: Any, env: dict[Any, Any], emitter: Emitter) -> Any:
    """An argument as converters take it."""
    if isinstance(value, list | tuple):
        return [_lifted(item, env, emitter) for item in value]
    if not isinstance(value, fx.Node):
        return value
    known = env[value]
    if isinstance(known, tvm.tirx.IntImm):
        return int(known)
    if isinstance(known, relax.Expr) and isinstance(known.ty, relax.TensorType):
        return emitter.lift(known)
    return known


def _check(node: fx.Node, result: Any) -> None:
    """Raise unless results have the dtypes, and as far as both are known the shapes, of PyTorch's.

    Raises
    ------
    ModelError
    """
    expected = node.meta["val"]
    pairs = zip(
        expected if isinstance(expected, list | tuple) else [expected],
        result if isinstance(result, list) else [result],
        strict=False,
    )
    for value, tensor in pairs:
        if not isinstance(tensor, Tensor):
            continue
        wanted = list(value.shape)
        same_rank = len(wanted) == tensor.ndim
        differs = same_rank and any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(wanted, tensor.shape, strict=True)
        )
        dtype = str(value.dtype).removeprefix("torch.")
        if not same_rank or differs or tensor.dtype != dtype:
            shape = [dimension_text(extent) for extent in tensor.shape]
            raise ModelError(
                f"it would be {tensor.dtype} of shape {shape}, where PyTorch has {dtype} of shape "
                f"{wanted}; this is a defect of graphgrad, please report it"
            )
