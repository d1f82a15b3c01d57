"""Kernels that change their arguments, as kernels that do not."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import te, tirx

from ..lift.prim_func import lifted
from .expressions import kernel_of


def make_out_of_place(func: tirx.PrimFunc, inplace: Sequence[int]) -> tirx.PrimFunc:
    """A kernel that returns what another one leaves in its arguments.

    Parameters
    ----------
    func : PrimFunc
    inplace : sequence of int
        For each result, which argument it overwrites; -1 for one that has a parameter of its own,
        behind all arguments.

    Returns
    -------
    PrimFunc
        In destination-passing style. It takes all arguments and leaves them as they are.

    Raises
    ------
    MissingGradientError
        Its loops say more than tensor expressions can.
    """
    inputs = len(func.params) - sum(index < 0 for index in inplace)
    behind = iter(range(inputs, len(func.params)))
    results = [index if index >= 0 else next(behind) for index in inplace]
    program = lifted(func, results, [index for index in inplace if index >= 0])
    parameters = [
        te.placeholder(param.shape, str(param.dtype), name=param.name)
        if parameter is None and not tvm.ir.is_prim_var(param)
        else parameter
        for param, parameter in zip(func.params[:inputs], program.parameters, strict=False)
    ]
    return kernel_of(parameters, program.outputs)
