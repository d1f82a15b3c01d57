"""Dropping results of a step that are its own arguments, overwritten in place.

Most results are such. To return each of hundreds of tensors from the virtual machine, as an object
of Python, takes longer than the kernels of a small network.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.rewrite import replace_body
from ..memory.donation import DONATED


def overwritten_arguments(mod: tvm.IRModule, name: str) -> list[int]:
    """The positions of the parameters that a function returns, overwritten, as results.

    Parameters
    ----------
    mod : IRModule
        As of `drop_arguments`, and before it.
    name : str
    """
    function = mod[name]
    fields = function.body.body.fields
    pairs = [(int(param), int(result)) for param, result in function.attrs[DONATED]]
    return sorted(p for p, result in pairs if fields[result].same_as(function.params[p]))


def types_of_results(mod: tvm.IRModule, name: str) -> list[tuple[list[int], str]]:
    """The shapes and dtypes of what a function returns, a flat tuple of tensors of known shape."""
    fields = mod[name].ret_ty.fields
    return [([int(extent) for extent in ty.shape], str(ty.dtype)) for ty in fields]


def drop_arguments(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, list[int]]:
    """Leave out of a function's results each that is the very argument whose place it takes.

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
    positions : list of int
        The positions in the former result of what the function still returns.
    """
    function = mod[name]
    param_of_result = {int(result): int(param) for param, result in function.attrs[DONATED]}
    fields = list(function.body.body.fields)
    # A donation that lowering refused left its result in memory of its own: not the same variable.
    positions = [
        index
        for index, field in enumerate(fields)
        if index not in param_of_result
        or not field.same_as(function.params[param_of_result[index]])
    ]
    body = relax.SeqExpr(function.body.blocks, relax.Tuple([fields[index] for index in positions]))
    types = relax.TupleType([function.ret_ty.fields[index] for index in positions])
    changed = mod.clone()
    changed[name] = replace_body(function, body, ret_ty=types)
    return changed, positions
