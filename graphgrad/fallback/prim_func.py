"""Graphs of stages as functions of TVM: a drop-in for `te.create_prim_func`.

TVM's own takes an argument that is both input and output, or is named twice, for a function that
writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te

from .graph import Key
from .walk import tensor_key


def create_prim_func(args: Sequence[Any], index_dtype_override: str | None = None) -> Any:
    """Return a function that computes some tensors from others.

    Parameters
    ----------
    args : sequence of Tensor or Var
        The parameters, in order: inputs (placeholders, scalar variables), then outputs. A tensor
        that occurs again, also a placeholder, is an output that gets a copy.
    index_dtype_override : str, optional
        Of all loop variables and extents.

    Returns
    -------
    PrimFunc
        In destination-passing style, marked ``tirx.noalias``: each parameter is a buffer of its
        own.
    """
    seen: set[Key] = set()
    parameters = []
    for arg in args:
        if isinstance(arg, te.Tensor):
            arg = _copy(arg) if tensor_key(arg) in seen else arg
            seen.add(tensor_key(arg))
        parameters.append(arg)
    return te.create_prim_func(parameters, index_dtype_override=index_dtype_override)


def _copy(tensor: te.Tensor) -> te.Tensor:
    return te.compute(tensor.shape, lambda *at: tensor[at], name=f"{tensor.op.name}_copy")
