"""Copies in memory of their own: of arrays, and as an op.

TVM's ``vm.builtin.copy`` returns its argument, and no op of Relax copies.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm_ffi.core import ObjectConvertible

from ..errors import ArgumentError
from ..ir.arrays import to_tensor
from ..ir.kernel_calls import KERNEL_OF_COPY
from ..memory.sharing import no_array
from .define import call_op, define_op, like_first


def copy(value: Any) -> Any:
    """A copy in memory of its own.

    TVM has no such thing: its ``vm.builtin.copy`` returns the argument itself.

    Parameters
    ----------
    value : array, Relax expression, or a list, tuple or dict of arrays
        An array of numpy, torch or TVM becomes one of the same library, dtype and device, without a
        gradient tape. A Relax tensor becomes a call of the op ``graphgrad.copy``, to be emitted as
        those of ``relax.op`` are; it is pure, differentiable, and no pass of graphgrad removes it.

    Raises
    ------
    InputError
        It is none of these.

    Examples
    --------
    >>> mine = gg.copy(step_output)
    >>> y = builder.emit(gg.copy(x))
    """
    if isinstance(value, tvm.ir.Expr | ObjectConvertible):
        return copy_of(value)
    if isinstance(value, Mapping):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # The class of a named tuple takes its items one by one; `_make` takes an iterable.
        make = getattr(type(value), "_make", type(value))
        return make(map(copy, value))
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    if isinstance(value, tvm.runtime.Tensor):
        return _copy_of_tensor(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone()
    raise no_array(value)


def _copy_of_tensor(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """A copy on the same device; `copyfrom` copies tensors without gaps alone."""
    if tensor.is_contiguous():
        return tvm.runtime.empty(tensor.shape, tensor.dtype, tensor.device).copyfrom(tensor)
    return to_tensor(tensor, tensor.device)


def copy_of(value: Any) -> relax.Call:
    """A call that copies a Relax tensor.

    Raises
    ------
    ArgumentError
        The value has a type, and it is not that of a tensor.
    """
    expr = value.asobject() if hasattr(value, "asobject") else value
    ty = getattr(expr, "ty", None)
    if isinstance(ty, relax.TupleType | relax.ShapeType | relax.FuncType):
        raise ArgumentError(f"graphgrad.copy takes a tensor, given a value of type {ty}")
    return call_op(_COPY, [expr])


def _compute(call: relax.Call, data: te.Tensor) -> te.Tensor:
    """The elements of the argument, in new memory."""
    return te.compute(data.shape, lambda *indices: data(*indices), name="copy")  # noqa: PLW0108


# Fused with its readers there would be no copy that outlives what it is a copy of.
_COPY = define_op(
    "copy",
    ["data"],
    like_first,
    _compute,
    opaque=True,
    attributes={KERNEL_OF_COPY: True},
)
