"""Group norm as exporters write it, by means of instance norm, found by its structure.

ONNX has the op since opset 18, and PyTorch's exporter does without it in older files: the channels
of a group and all positions are reshaped to one axis, the groups are normalized like channels of an
instance norm, and all is reshaped back; scale and shift follow as a product and a sum. An axis of
channels and positions exists in the layout of ONNX alone, so that each norm would convert its data;
the op says what it computes in any layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..ir.calls import calls_op
from ..ir.program import Program, variables_in
from ..ir.tensor import Emitter, Tensor, has_shape, same_dimension, same_shape, type_shape
from ..ir.write import replace_bindings
from . import functional as op

STANDS_FOR_IT = "relax.nn.instance_norm"
"""The op without which there is nothing to find."""

_DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class _Found:
    """A group norm that was found.

    Attributes
    ----------
    inner : tuple of variables
        What nothing else reads, so that it is left out.
    x : expression
        (N, C, …).
    groups : int
    epsilon : float
    span : Span or None
        Of the instance norm.
    scale, shift : expression or None
        One value per channel, in the shape of the file.
    """

    inner: tuple[Any, ...]
    x: Any
    groups: int
    epsilon: float
    span: Any
    scale: Any = None
    shift: Any = None

    def emit(self, emitter: Emitter, at: Callable[[Any], Any], name: str) -> Tensor:
        """Emit it; `name` is that of its result."""
        channels = type_shape(self.x.ty)[1]

        def per_channel(expr: Any, neutral: float) -> Any:
            if expr is None:
                return relax.const(np.full(channels, neutral), str(self.x.ty.dtype))
            return op.reshape(emitter.lift(at(expr)), [channels]).expr

        call = relax.op.nn.group_norm(
            at(self.x),
            per_channel(self.scale, 1.0),
            per_channel(self.shift, 0.0),
            num_groups=self.groups,
            channel_axis=1,
            axes=list(range(2, len(type_shape(self.x.ty)))),
            epsilon=self.epsilon,
            center=self.shift is not None,
            scale=self.scale is not None,
        )
        with emitter.at(self.span, name):
            normalized: Tensor = emitter.emit(call)
        return normalized


def fuse_group_norms(
    program: Program, keep: Collection[Any], is_custom: Callable[[str], bool] = lambda name: False
) -> Program:
    """A program that has ``relax.nn.group_norm`` where reshapes and an instance norm stood for it.

    Parameters
    ----------
    program : Program
        Not changed.
    keep : collection of variables
        What must remain, because somebody asks for it by its name.
    is_custom : callable
        From the name of an op to whether somebody has a rule of their own for it, which holds.
    """
    if not program.dataflow:
        return program  # branches may read what is inside
    search = _Search(program, keep)
    found: dict[Any, _Found] = {}
    for var, value in program.bindings:
        match = search.core(value)
        if match is not None:
            last, match = search.extended(var, match)
            if not any(is_custom(name) for name in search.ops({*match.inner, last})):
                found[last] = match
    if not found:
        return program
    dropped = {var for match in found.values() for var in match.inner}
    replacements = {var: partial(match.emit, name=var.name) for var, match in found.items()}
    return replace_bindings(program, replacements, dropped)


class _Search:
    """The search for group norms in one program."""

    def __init__(self, program: Program, keep: Collection[Any]):
        self._bound: dict[Any, Any] = dict(program.bindings)
        self._visible = {*variables_in(program.result), *keep}
        self._readers: dict[Any, list[Any]] = defaultdict(list)
        for var, value in program.bindings:
            for read in set(variables_in(value)):
                self._readers[read].append(var)

    def core(self, value: Any) -> _Found | None:
        """The norm that a binding returns to the shape of its data; None if it is none."""
        if not calls_op(value, "relax.reshape"):
            return None
        norm: Any = self._bound.get(value.args[0])
        if not calls_op(norm, STANDS_FOR_IT):
            return None
        data, scale, shift = norm.args
        grouped: Any = self._bound.get(data)
        if not calls_op(grouped, "relax.reshape"):
            return None
        x = grouped.args[0]
        inner = (data, value.args[0])
        if any(self._reader(each) is None for each in inner):
            return None
        if not all(has_shape(expr.ty) for expr in (x, data, value)):
            return None
        shape, by_group, result = (type_shape(expr.ty) for expr in (x, data, value))
        axes = {int(axis) % len(by_group) for axis in norm.attrs.axes}
        fits = (
            str(x.ty.dtype) in _DTYPES
            and len(shape) > 2
            and same_shape(shape, result)
            and len(by_group) > 2
            and int(norm.attrs.channel_axis) % len(by_group) == 1
            and axes == set(range(2, len(by_group)))
            and same_dimension(shape[0], by_group[0])
            and isinstance(shape[1], int)
            and isinstance(by_group[1], int)
            and by_group[1] > 0
            and shape[1] % by_group[1] == 0
        )
        is_plain = (not norm.attrs.scale or _is_filled(scale, 1.0)) and (
            not norm.attrs.center or _is_filled(shift, 0.0)
        )
        if not fits or not is_plain:
            return None
        return _Found(inner, x, by_group[1], float(norm.attrs.epsilon), norm.span)

    def extended(self, last: Any, match: _Found) -> tuple[Any, _Found]:
        """The norm with the scale and the shift that follow, and the variable of its result."""
        inner, found = list(match.inner), {}
        for name, operation in (("scale", "relax.multiply"), ("shift", "relax.add")):
            reader = self._reader(last)
            operand = self._per_channel(reader, operation, last) if reader is not None else None
            if operand is not None:
                inner.append(last)
                found[name], last = operand, reader
        return last, replace(match, inner=tuple(inner), **found)

    def ops(self, variables: Collection[Any]) -> set[str]:
        """The names of the ops that variables are bound to."""
        return {str(self._bound[var].op.name) for var in variables}

    def _reader(self, var: Any) -> Any:
        """The only binding that reads a variable; None if others see it, too."""
        readers = self._readers[var]
        return readers[0] if len(readers) == 1 and var not in self._visible else None

    def _per_channel(self, reader: Any, operation: str, var: Any) -> Any:
        """The other operand of an operation on a norm, if it has a value for each channel."""
        value = self._bound[reader]
        if not calls_op(value, operation) or not all(has_shape(each.ty) for each in value.args):
            return None
        others = [operand for operand in value.args if not operand.same_as(var)]
        if len(others) != 1:
            return None
        shape, extents = type_shape(var.ty), type_shape(others[0].ty)
        expected = [1, shape[1], *(1 for _ in shape[2:])]
        if len(extents) > len(expected):
            return None
        padded = [1] * (len(expected) - len(extents)) + list(extents)
        return others[0] if same_shape(padded, expected) else None


def _is_filled(expr: Any, number: float) -> bool:
    """Whether an expression is a constant of one number."""
    return isinstance(expr, tvm.ir.GenericConst) and bool((expr.value.numpy() == number).all())
