"""An ONNX graph that is being written: nodes, constants, and extents that are known at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from ...ir.attributes import Attributes
from ...ir.tensor import type_shape

OPSET = 17
"""The lowest version that has all operators that are written, with the types they are used at."""

NEWEST_OPSET = 21


ANYTHING = "anything"
"""A name that stands for any tensor, where it is only asked whether something can be written."""


class UnwritableError(Exception):
    """A call of an op that is known, with attributes or shapes at which it is not written."""


class OpsetError(Exception):
    """Something that a version of the default domain cannot say.

    Parameters
    ----------
    what : str
    least : int
        The version that can.
    """

    def __init__(self, what: str, least: int):
        super().__init__(what, least)
        self.what, self.least = what, least


class GraphWriter:
    """The nodes and constants of a graph.

    Parameters
    ----------
    opset : int
        The version of the default domain, from `OPSET` to `NEWEST_OPSET`.
    taken : sequence of str
        Names that no value may get: those of inputs, outputs and weights.
    kernels : mapping, optional
        The PrimFuncs that calls may call, by GlobalVar.
    """

    def __init__(self, opset: int, taken: Sequence[str], kernels: Mapping[Any, Any] | None = None):
        self.opset, self.kernels = opset, dict(kernels or {})
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.places = {ANYTHING}  # of maxima, see `window`
        self._taken = set(taken)
        self._constants: dict[Any, str] = {}
        self._numbers: dict[str, np.ndarray] = {}  # constants that indices are computed from
        self._values: dict[Any, Any] = {}  # what nodes compute, seen from where they are added
        self.extents: dict[str, tuple[str, int]] = {}  # inputs and axes that have them, by name
        self._hint = "value"

    def require(self, opset: int, what: str) -> None:
        """Raise `OpsetError` if the version is below one that can say something."""
        if self.opset < opset:
            raise OpsetError(what, opset)

    def hint(self, name: str) -> None:
        """Name the values that follow by this."""
        self._hint = name

    def name(self, hint: str) -> str:
        """A name that no other value has."""
        unique, number = hint, 0
        while unique in self._taken:
            number += 1
            unique = f"{hint}_{number}"
        self._taken.add(unique)
        return unique

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of them if there are several.

        A node that is there already is not added again, unless there is a graph in it; numbers that
        are known are constants.
        """
        if any(isinstance(value, onnx.GraphProto) for value in attributes.values()):
            return self._added(operator, inputs, outputs, attributes)
        if operator in _FOLDED and all(name in self._numbers for name in inputs):
            arrays = [self._numbers[name] for name in inputs]
            return self.constant(_FOLDED[operator](*arrays, **attributes))
        key = operator, inputs, outputs, repr(sorted(attributes.items()))
        return self.once(key, lambda: self._added(operator, inputs, outputs, attributes))

    def _added(
        self, operator: str, inputs: Sequence[str], outputs: int, attributes: Mapping[str, Any]
    ) -> Any:
        names = [self.name(self._hint) for _ in range(outputs)]
        label = self.name(f"{self._hint}/{operator}")
        self.nodes.append(helper.make_node(operator, list(inputs), names, label, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: str | None = None) -> str:
        """The name of a constant; equal ones are the same."""
        array = np.array(value, dtype, order="C")
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._constants:
            name = self.name("constant")
            self.initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
            if array.dtype.kind in "ib" and array.size <= _MOST_NUMBERS:
                self._numbers[name] = array
        return self._constants[key]

    def ints(self, values: Sequence[int]) -> str:
        """The name of a constant vector of int64."""
        return self.constant(np.array(values, "int64").reshape(len(values)))

    @contextmanager
    def inside(self) -> Iterator[list[onnx.NodeProto]]:
        """Let what is added inside of the ``with`` block be the nodes of a graph in a node."""
        outer, values, extents = self.nodes, dict(self._values), dict(self.extents)
        self.nodes = []
        try:
            yield self.nodes
        finally:
            self.nodes, self._values, self.extents = outer, values, extents

    def once(self, key: Any, write: Callable[[], Any]) -> Any:
        """The name of what `write` adds; it is added once for each key."""
        if key not in self._values:
            self._values[key] = write()
        return self._values[key]

    def read_extents(self, name: str, shape: Sequence[Any]) -> None:
        """Let the symbolic extents of an input be read off its shape, where they are needed."""
        for axis, extent in enumerate(shape):
            if isinstance(extent, tvm.tirx.Var):
                self.extents.setdefault(extent.name, (name, axis))

    def extent(self, value: Any) -> str:
        """The name of a vector of one int64: an extent, or an expression of symbolic ones."""
        if isinstance(value, int | tvm.tirx.IntImm):
            return self.ints([int(value)])
        if isinstance(value, tvm.tirx.Var):
            name, axis = self.extents[value.name]
            return self.once(
                f"extent {value.name}",
                lambda: self.node("Shape", name, start=axis, end=axis + 1),
            )
        operator = _ARITHMETIC.get(type(value))
        if operator is None:
            raise UnwritableError(f"the extent {value}")
        return self.node(operator, self.extent(value.a), self.extent(value.b))

    def shape(self, extents: Sequence[Any]) -> str:
        """The name of a vector of int64 with these extents."""
        if all(isinstance(extent, int | tvm.tirx.IntImm) for extent in extents):
            return self.ints([int(extent) for extent in extents])
        return self.node("Concat", *map(self.extent, extents), axis=0)

    def reshape(self, x: str, extents: Sequence[Any]) -> str:
        """A tensor in another shape; an extent of 0 is one."""
        return self.node("Reshape", x, self.shape(extents), allowzero=1)

    def reduce(self, operator: str, x: str, axes: Sequence[int], keepdims: bool) -> str:
        """A reduction, whose axes are an input or an attribute by the version."""
        if not axes:
            return self.node("Identity", x)
        if operator == "ReduceSum" or self.opset >= 18:
            return self.node(operator, x, self.ints(axes), keepdims=int(keepdims))
        return self.node(operator, x, axes=list(axes), keepdims=int(keepdims))

    def is_infinite(self, x: str, dtype: str) -> str:
        """Whether the elements are infinite."""
        if dtype not in ("float32", "float64"):  # of others there is no IsInf before version 20
            x = self.node("Cast", x, to=elem_type("float32"))
        return str(self.node("IsInf", x))

    def scalar(self, extent: Any) -> str:
        """An extent as a scalar."""
        return str(self.node("Reshape", self.extent(extent), self.ints([])))

    def choice(self, condition: str, x: str, y: str, ty: relax.TensorType) -> str:
        """One of two tensors of a type, by a scalar."""
        branches = []
        for branch, value in (("then", x), ("else", y)):
            output = self.name(f"{self._hint}.{branch}")
            node = helper.make_node("Identity", [value], [output], f"{output}/Identity")
            branches.append(helper.make_graph([node], branch, [], [value_info(output, ty)]))
        return str(self.node("If", condition, then_branch=branches[0], else_branch=branches[1]))

    def permute(self, x: str, axes: Sequence[int]) -> str:
        """A tensor with its axes in another order."""
        return self.node("Transpose", x, perm=list(axes))


_ARITHMETIC = {
    tvm.ir.prim.Add: "Add",
    tvm.ir.prim.Sub: "Sub",
    tvm.ir.prim.Mul: "Mul",
    # Extents are not negative.
    tvm.ir.prim.FloorDiv: "Div",
    tvm.ir.prim.Div: "Div",
}


_MOST_NUMBERS = 1024
"""Elements of a constant that others are computed from."""

_FOLDED: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Mul": np.multiply,
    "Range": np.arange,
    "Reshape": lambda x, shape, allowzero=0: x.reshape(shape),
    "Sub": np.subtract,
}
"""What is computed where all that a node reads is known."""


class Site:
    """A call that is being written.

    Attributes
    ----------
    graph : GraphWriter
    call : relax.Call
    names : list
        For each argument the name of the tensor, a list of names for a tuple, or the expression
        itself if it is no tensor.
    ty : type
        Of the result.
    """

    def __init__(self, graph: GraphWriter, call: Any, names: list[Any], ty: Any):
        self.graph, self.call, self.names, self.ty = graph, call, names, ty

    @property
    def attributes(self) -> Attributes:
        """The attributes of the call, in plain Python values."""
        return Attributes(self.call.attrs)

    def shape_of(self, argument: int) -> list[Any]:
        """The shape of an argument."""
        return type_shape(self.call.args[argument].ty)

    def static_shape_of(self, argument: int) -> list[int]:
        """The shape of an argument, whose extents are known."""
        return static_extents(self.shape_of(argument))

    @property
    def shape(self) -> list[Any]:
        """The shape of the result."""
        return type_shape(self.ty)

    @property
    def dtype(self) -> str:
        """The dtype of the result."""
        return str(self.ty.dtype)

    def axes(self, axes: Any, rank: int) -> list[int]:
        """Axes as an attribute has them, none for all, as non-negative numbers."""
        if axes is None:
            return list(range(rank))
        return [axis % rank for axis in (axes if isinstance(axes, tuple | list) else [axes])]


def static_extents(shape: Sequence[Any]) -> list[int]:
    """Extents that must be known.

    Raises
    ------
    UnwritableError
        One of them is symbolic.
    """
    if not all(isinstance(extent, int) for extent in shape):
        raise UnwritableError(f"the shape {shape} is not known")
    return list(shape)


def refuse_out_layout(site: Site, layout: str) -> None:
    """Raise `UnwritableError` if a call's result has a layout of its own."""
    attributes = site.call.attrs
    of_result = "" if isinstance(attributes, tvm.ir.DictAttrs) else attributes.out_layout
    if of_result not in ("", layout):
        raise UnwritableError(f"the layout {of_result} of the result")


def static_extent(extent: Any) -> int:
    """An extent that must be known, see `static_extents`."""
    return static_extents([extent])[0]


Writer = Callable[[Site], Any]
"""Adds the nodes of a call; returns the name of its result, or a list for a tuple."""

WRITERS: dict[str, Writer] = {}
"""The writers by the names of ops."""


def writes(*names: str) -> Callable[[Writer], Writer]:
    """Register the writer of some ops."""

    def register(function: Writer) -> Writer:
        WRITERS.update(dict.fromkeys(names, function))
        return function

    return register


def elem_type(dtype: str) -> int:
    """The number that ONNX has for a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def value_info(name: str, ty: relax.TensorType) -> onnx.ValueInfoProto:
    """The type of an input or output, with the names of its symbolic dimensions."""
    shape = [extent if isinstance(extent, int) else str(extent) for extent in type_shape(ty)]
    return helper.make_tensor_value_info(name, elem_type(str(ty.dtype)), shape)
