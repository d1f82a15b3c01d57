"""Graphs of stages as functions of TVM: a drop-in for `te.create_prim_func`.

TVM's own gets reductions wrong (see `explicit_reductions`), joins conditions that protect one
another (see `nested_guards`), computes bfloat16 wrongly (see `wide_floats`), and takes an argument
that is both input and output, or is named twice, for a function that writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim
from tvm.s_tir import SBlock

from ...errors import ArgumentError
from ...ir.exact_divisions import write_exact_divisions
from ...ir.visits import nodes_in
from ..cut import cut_stage
from ..graph import Key, operations, rewritten, sources
from ..kinds import copied
from ..walk import identity, tensor_key
from .accumulation import Accumulation, accumulated, accumulations, overwriting
from .axis_ranges import restore_ranges
from .explicit_bindings import bind_shared_values
from .explicit_reductions import spell_out_reduction
from .hidden_bindings import hide_bindings, reveal_bindings
from .nested_guards import protect_guards
from .out_of_range_loads import clamp_out_of_range_loads
from .scans import lower_scans
from .wide_arrays import widen_arrays
from .wide_floats import widen_bfloat16
from .wide_reductions import widen_reduction


def create_prim_func(
    args: Sequence[te.Tensor | tvm.ir.Var],
    accumulate: Mapping[te.Tensor, te.Tensor] | Sequence[Accumulation] | None = None,
    index_dtype_override: str | None = None,
) -> tirx.PrimFunc:
    """A function that computes some tensors from others.

    Reductions mean what they say: with `where` and `init`, over ranges that are empty, or turn
    out to be at run time, and with components in any order. Those of float16 and bfloat16 are
    computed in float32, as is all arithmetic of bfloat16, and rounded once.

    Parameters
    ----------
    args : sequence of Tensor or Var
        The parameters, in order: inputs (placeholders, scalar variables) and outputs, of any
        dtype and shape. A tensor that occurs again, also a placeholder, is an output that gets a
        copy.
    accumulate : mapping from Tensor to Tensor, or pairs of them, optional
        Outputs, which need not be among `args`, and for each the placeholder in `args` of the
        buffer to which it is added: ``buffer = buffer + output``, where the buffer is one
        parameter. Any stage that reads the buffer reads what it held before. Narrow floats
        are added in float32 and rounded once.
    index_dtype_override : str, optional
        Of all loop variables and extents.

    Returns
    -------
    PrimFunc
        In destination-passing style, marked ``tirx.noalias``: each parameter is a buffer of its
        own.

    Raises
    ------
    ArgumentError
        An argument is no tensor or variable; a tensor or a variable that is needed is not among
        them; an output does not fit the buffer to which it is to be added; or something is of
        floats of fewer than 16 bits.
    """
    return lowered(args, accumulate, index_dtype_override)


def lowered(
    args: Sequence[te.Tensor | tvm.ir.Var],
    accumulate: Mapping[te.Tensor, te.Tensor] | Sequence[Accumulation] | None = None,
    index_dtype_override: str | None = None,
    rounded: bool = True,
) -> tirx.PrimFunc:
    """As `create_prim_func`.

    Parameters
    ----------
    args, accumulate, index_dtype_override
        See there.
    rounded : bool
        Whether it says by bits how narrow floats are rounded. Without, it keeps their dtypes, to
        be promoted; TVM compiles it wrongly as it is.
    """
    args = list(args)
    _check(args)
    pairs = accumulations(accumulate, args)
    tensors = [arg for arg in args if isinstance(arg, te.Tensor)]
    sums = accumulated(pairs, tensors) if pairs else []
    _check_placeholders(tensors, [*tensors, *sums])
    stages = iter(_copy_repeated(_make_lowerable([*tensors, *sums], rounded)))
    parameters = [next(stages) if isinstance(arg, te.Tensor) else arg for arg in args]
    # The sums are what is left of `stages`: parameters at the end, until they overwrite buffers.
    func = te.create_prim_func([*parameters, *stages], index_dtype_override=index_dtype_override)
    func = restore_ranges(func) if index_dtype_override else func
    func = reveal_bindings(func)
    func = bind_shared_values(widen_bfloat16(func) if rounded else func)
    func = write_exact_divisions(func)
    _check_variables(func)
    if not pairs:
        return func
    buffers = [_position(buffer, args) for _, buffer in pairs]
    return overwriting(func, {len(args) + i: position for i, position in enumerate(buffers)})


def _make_lowerable(tensors: Sequence[te.Tensor], rounded: bool) -> list[te.Tensor]:
    """The same tensors by stages that TVM lowers rightly."""
    tensors = clamp_out_of_range_loads(tensors)
    tensors = lower_scans(tensors, lambda rows: _copy_repeated(_make_lowerable(rows, rounded)))
    changes = (spell_out_reduction, cut_stage, protect_guards, hide_bindings)
    for change in (widen_arrays, widen_reduction, *changes) if rounded else changes:
        tensors = rewritten(tensors, change)
    return list(tensors)


def _copy_repeated(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors with a copy for each that occurs again."""
    seen: set[Key] = set()
    result = []
    for tensor in tensors:
        result.append(
            copied(tensor, f"{tensor.op.name}_copy") if tensor_key(tensor) in seen else tensor
        )
        seen.add(tensor_key(tensor))
    return result


def _position(buffer: te.Tensor, args: Sequence[Any]) -> int:
    keys = [tensor_key(arg) if isinstance(arg, te.Tensor) else None for arg in args]
    return keys.index(tensor_key(buffer))


def _check(args: Sequence[Any]) -> None:
    """Raise unless the arguments are tensors and scalar variables, the latter once each."""
    seen: list[Any] = []
    for number, arg in enumerate(args):
        if isinstance(arg, te.Tensor):
            continue
        if not isinstance(arg, tvm.ir.Var) or not isinstance(arg.ty, tvm.ir.PrimType):
            raise ArgumentError(
                f"argument {number} is {arg!r}; it must be a tensor or a scalar variable (te.var)"
            )
        if any(arg.same_as(other) for other in seen):
            raise ArgumentError(
                f"the variable {arg.name} is twice among the arguments; give it once"
            )
        seen.append(arg)


def _check_placeholders(args: Sequence[te.Tensor], computed: Sequence[te.Tensor]) -> None:
    """Raise if a placeholder that is read is not an argument."""
    arguments = {tensor_key(tensor) for tensor in args}
    for op in operations(*computed):
        for tensor in sources(op):
            if isinstance(tensor.op, te.PlaceholderOp) and tensor_key(tensor) not in arguments:
                raise ArgumentError(
                    f"the stage {op.name} reads the placeholder {tensor.op.name}, which is not "
                    "among the arguments; add it to them"
                )


def _check_variables(func: tirx.PrimFunc) -> None:
    """Raise if a variable is used that is neither an argument nor an extent of one."""
    # TVM's own analysis takes a `Let` variable for undefined where it is part of an index.
    defined = list(func.params)
    for param in func.params:
        if isinstance(param.ty, tirx.buffer.BufferType):
            defined += [*param.ty.shape, *param.ty.strides, param.ty.elem_offset]
    for block in nodes_in(func.body, SBlock):
        defined += [axis.var for axis in block.iter_vars]
    defined += [loop.loop_var for loop in nodes_in(func.body, tirx.For)]
    defined += [binding.var for binding in nodes_in(func.body, (prim.Let, tirx.Bind))]
    used = nodes_in(func.body, tvm.ir.Var)
    identities = {identity(var) for var in defined if isinstance(var, tvm.ir.Var)}
    scalars = [var for var in used if isinstance(var.ty, tvm.ir.PrimType)]
    unknown = [var for var in scalars if identity(var) not in identities]
    if unknown:
        names = ", ".join(sorted({var.name for var in unknown}))
        raise ArgumentError(
            f"the variables {names} are used, but are neither among the arguments nor an extent "
            "of one; add them to the arguments"
        )
