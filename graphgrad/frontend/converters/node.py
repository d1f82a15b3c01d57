"""The view of an ONNX node that a converter gets, and the registry of converters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...errors import ModelError
from ...ir.tensor import Dimension, Emitter, Tensor
from ..known_values import KnownValue
from ..onnx_graph import STANDARD_DOMAINS

Converter = Callable[["Node"], Any]
"""Emits a node's operation; returns its output, a `Tensor`, or a tuple of several."""

_CONVERTERS: dict[tuple[str, str], Converter] = {}

_REQUIRED = object()  # a marker, since None may be the default of an attribute


def _no_graph(graph: Any, inputs: Sequence[Any]) -> tuple[list[Any], list[KnownValue | None]]:
    raise ModelError("the graphs that it holds cannot be translated here")


@dataclass(frozen=True)
class Node:
    """One ONNX node, with its inputs translated.

    Attributes
    ----------
    name, op_type, domain : str
    opset : int
        Version of the standard operators that the model asks for.
    inputs : sequence
        Relax values: variables, constants and shapes; None for an input that is left out.
    attributes : mapping of str to value
        Lists are tuples, strings are bytes, tensors are numpy arrays.
    output_count : int
        How many outputs the node lists; trailing ones that are not needed may be missing.
    emitter : Emitter
    known : sequence of KnownValue or None
        The values of those inputs that are known at import, though some elements may depend on
        symbolic dimensions.
    stock : callable
        Translates the node as TVM's importer does.
    inline : callable
        Translates a graph that an attribute holds, given a `Tensor`, a list of those (a sequence)
        or a KnownValue for each of its inputs. Returns its outputs as tensors and lists, and for
        each the value if that is known at import.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: Sequence[Any]
    attributes: Mapping[str, Any]
    output_count: int
    emitter: Emitter
    known: Sequence[KnownValue | None] = ()
    stock: Callable[[], Sequence[Any]] = tuple
    inline: Callable[[Any, Sequence[Any]], tuple[list[Any], list[KnownValue | None]]] = _no_graph

    def attribute(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute, or its default where the node does not give it.

        Raises
        ------
        ModelError
            It has no default and is missing.
        """
        value = self.attributes.get(name, default)
        if value is _REQUIRED:
            raise ModelError(f"its attribute {name!r} is missing")
        return value

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        """An input as a tensor.

        Raises
        ------
        ModelError
            It is missing or no tensor.
        """
        if not self.has(index):
            raise ModelError(f"its input {index} is missing")
        value = self.inputs[index]
        known_value = self._known(index)
        # The input itself may be a shape; its tensor is computed from the symbolic dimensions.
        if known_value is not None and not known_value.is_concrete:
            return self.emitter.lift(known_value.tensor(self.emitter.builder))
        if isinstance(value.ty, relax.ShapeType):
            return self.emitter.emit(relax.op.shape_to_tensor(value))
        if isinstance(value.ty, tvm.ir.PrimType):
            shape = relax.ShapeExpr([value])
            vector = self.emitter.emit(relax.op.shape_to_tensor(shape))
            return self.emitter.emit(relax.op.reshape(vector.expr, []))
        tensor = self.emitter.lift(value)
        if not isinstance(tensor, Tensor):
            raise ModelError(f"its input {index} is no tensor, it is a {type(value.ty).__name__}")
        return tensor

    def value(self, index: int) -> Any:
        """An input in the form that `inline` takes: a KnownValue, a tensor, or a list of tensors.

        An optional without a value is what TVM's importer has for it.
        """
        known_value, value = self._known(index), self.inputs[index]
        if known_value is not None or not isinstance(value, relax.Expr):
            return value if known_value is None else known_value
        return self.emitter.lift(value)

    def constant(self, index: int) -> np.ndarray | None:
        """The value of an input that must be known at import; None if it is left out.

        Raises
        ------
        ModelError
            Its value is known at run time only.
        """
        if not self.has(index):
            return None
        value = self.inputs[index]
        known_value = self._known(index)
        if known_value is not None and known_value.is_concrete:
            return known_value.array()
        if isinstance(value, tvm.ir.GenericConst):
            return value.value.numpy()
        if isinstance(value, relax.ShapeExpr) and all(_is_int(dim) for dim in value):
            return np.array([int(dim) for dim in value], dtype="int64")
        raise ModelError(
            f"its input {index} is computed by the model or given at run time: make it a constant"
        )

    def dimensions(self, index: int) -> list[Dimension] | None:
        """An input that is a list of extents: ints, and expressions where symbolic.

        None if the input is left out.

        Raises
        ------
        ModelError
            Its value is known at run time only.
        """
        extents = self.known_dimensions(index)
        if extents is not None:
            return extents
        constant = self.constant(index)
        return None if constant is None else [int(dim) for dim in constant.reshape(-1)]

    def known_dimensions(self, index: int) -> list[Dimension] | None:
        """An input that is a list of extents; None if left out, or known at run time only."""
        known_value = self._known(index)
        dimensions = None if known_value is None else known_value.dimensions()
        if dimensions is not None:
            return dimensions
        value = self.inputs[index] if self.has(index) else None
        if isinstance(value, relax.ShapeExpr):
            return [int(dim) if _is_int(dim) else dim for dim in value]
        return None

    def by_tvm(self) -> tuple[Any, ...]:
        """The outputs as TVM's importer translates the node."""
        return tuple(self.stock())

    def _known(self, index: int) -> KnownValue | None:
        return self.known[index] if index < len(self.known) else None


def converter(*op_types: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a translation of operators; the standard domain is the empty string."""

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            _CONVERTERS[domain, op_type] = function
        return function

    return register


def find(domain: str, op_type: str) -> Converter | None:
    """The converter of an operator; None if TVM's importer has to translate it."""
    return _CONVERTERS.get(("" if domain in STANDARD_DOMAINS else domain, op_type))


def _is_int(dimension: Any) -> bool:
    return isinstance(dimension, int | tvm.tirx.IntImm)
