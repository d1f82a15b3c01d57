"""Results of a step that are new: most are arguments, which the step has overwritten.

To hand each of hundreds of tensors through the virtual machine, and to make an object of Python of
it, takes longer than the kernels of a small network.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..memory.donation import DONATED


def drop_arguments(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, list[int]]:
    """Leave out of what a function returns all that is the argument whose place it takes.

    Parameters
    ----------
    mod : IRModule
        Lowered: what is overwritten is decided.
    name : str
        A function that returns a flat tuple. Its attribute `DONATED` says which parameter each
        result takes the place of.

    Returns
    -------
    mod : IRModule
        With the function changed.
    kept : list of int
        The positions in the former result of what the function still returns.
    """
    function = mod[name]
    replaced = {int(result): int(param) for param, result in function.attrs[DONATED]}
    fields = list(function.body.body.fields)
    kept = [
        index
        for index, field in enumerate(fields)
        if index not in replaced or not field.same_as(function.params[replaced[index]])
    ]
    body = relax.SeqExpr(function.body.blocks, relax.Tuple([fields[index] for index in kept]))
    types = relax.TupleType([function.ret_ty.fields[index] for index in kept])
    changed = mod.clone()
    changed[name] = relax.Function(
        function.params, body, types, function.is_pure, function.attrs, function.span
    )
    return changed, kept
