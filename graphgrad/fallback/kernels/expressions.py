"""The tensor expressions of a kernel: those that it was made of, else read off its loops.

A kernel that graphgrad makes carries the number under which its expressions are kept, so a scan, a
scatter or a sort in it need not be recognized from loops. Another process, which has not made it,
reads the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from ...errors import ArgumentError
from ..graph import operations, outputs_of
from ..lift.prim_func import TensorProgram, raised
from ..lowering.prim_func import create_prim_func
from ..walk import identity
from .retyped import Retype, Retyping

_ATTRIBUTE = "graphgrad.expressions"

_OPAQUE_PATTERN = 8
"""TVM's number for kernels that are not to be fused with their neighbors."""

_KEPT_PROGRAMS: dict[str, tuple[tirx.PrimFunc, TensorProgram]] = {}


def kernel_of(parameters: Sequence[Any], outputs: Sequence[te.Tensor]) -> tirx.PrimFunc:
    """Return a kernel that computes some tensors, and that knows of what it was made.

    Parameters
    ----------
    parameters : sequence of Tensor or Var
        Placeholders and scalar variables.
    outputs : sequence of Tensor

    Returns
    -------
    PrimFunc
        Without a global symbol: a module gives it a name of its own. Kernels that are made of
        equal expressions are equal.
    """
    func = create_prim_func([*parameters, *outputs], index_dtype_override="int64")
    func = func.without_attr("global_symbol")
    number = str(tvm_ffi.structural_hash(func))
    program = TensorProgram([*parameters, *[None] * len(outputs)], list(outputs))
    _KEPT_PROGRAMS.setdefault(number, (func, program))
    func = _rename_extents(func, [*parameters, *outputs]).with_attr(_ATTRIBUTE, number)
    stages = operations(*outputs)
    if any(isinstance(op, te.ExternOp | te.ScanOp) for op in stages):
        # TVM takes a scan for an elementwise map by the look of its loops, and fuses it.
        func = func.with_attr("op_pattern", _OPAQUE_PATTERN)
    return func


def expressions_of(func: tirx.PrimFunc, outputs: int) -> TensorProgram:
    """Return the tensor expressions that a kernel in destination-passing style computes.

    Parameters
    ----------
    func : PrimFunc
    outputs : int
        How many of its parameters, the last ones, are results.

    Raises
    ------
    MissingGradientError
        Its loops say more than tensor expressions can.
    """
    program = kept_expressions(func)
    count = len(func.params)
    return raised(func, range(count - outputs, count)) if program is None else program


def retype_kernel(func: tirx.PrimFunc, retype: Retype) -> tirx.PrimFunc | None:
    """Return a kernel that computes the same in other dtypes.

    Parameters
    ----------
    func : PrimFunc
    retype : callable
        Maps the name of a dtype to that of the dtype in its place.

    Returns
    -------
    PrimFunc or None
        None if it was not made of tensor expressions here, or of some that have dtypes built in.
    """
    program = kept_expressions(func)
    if program is None:
        return None
    retyping = Retyping(retype)
    try:
        outputs = retyping.tensors(program.outputs)
    except ArgumentError:
        return None
    given = program.parameters[: len(program.parameters) - len(outputs)]
    return kernel_of([retyping.parameter(parameter) for parameter in given], outputs)


def kept_expressions(func: tirx.PrimFunc) -> TensorProgram | None:
    """Return the expressions that a kernel was made of here."""
    number = func.attrs.get(_ATTRIBUTE) if func.attrs else None
    made, program = _KEPT_PROGRAMS.get(str(number), (None, None))
    # A pass may have changed the loops and kept the attribute: then they count.
    same = program is not None and tvm_ffi.structural_equal(
        _drop_attributes(made), _drop_attributes(func)
    )
    return program if same else None


def free_variables(*tensors: te.Tensor) -> list[tirx.Var]:
    """Return the variables in a graph of stages that no loop of it binds: its symbolic extents."""
    found: dict[int, tirx.Var] = {}
    for op in operations(*tensors):
        expressions = [extent for tensor in outputs_of(op) for extent in tensor.shape]
        loops: list[Any] = []
        if isinstance(op, te.ComputeOp):
            loops = [axis.var for axis in (*op.axis, *op.reduce_axis)]
            if isinstance(op.body[0], tirx.Reduce):
                loops += [*op.body[0].combiner.lhs, *op.body[0].combiner.rhs]
            expressions += op.body
            expressions += [axis.dom.extent for axis in op.reduce_axis]
        bound = {identity(var) for var in loops}
        for expression in expressions:
            for var in tirx.analysis.undefined_vars(expression):
                if tvm.ir.is_prim_var(var) and identity(var) not in bound:
                    found.setdefault(identity(var), var)
    return list(found.values())


def _rename_extents(func: tirx.PrimFunc, tensors: Sequence[Any]) -> tirx.PrimFunc:
    """Return a function with symbolic extents of its own.

    TVM's fusion takes an extent that two functions have in common for one and the same number.
    """
    extents = [e for t in tensors if isinstance(t, te.Tensor) for e in t.shape]
    own = {
        identity(var): tirx.Var(var.name, str(var.ty))
        for extent in extents
        for var in tirx.analysis.undefined_vars(extent)
    }
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: own.get(identity(var), var)))


def _drop_attributes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function without its attributes."""
    return tirx.PrimFunc(func.params, func.body, func.ret_type)
