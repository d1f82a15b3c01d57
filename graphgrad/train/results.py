"""Dropping results of a step that are its own arguments, overwritten in place.

Most results are such. To return each of hundreds of tensors from the virtual machine, as an object
of Python, takes longer than the kernels of a small network.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.rewrite import replace_body
from ..memory.donation import DONATED
from ..runtime.cuda_graph import Form
from ..runtime.results import Returned


def drop_arguments(mod: tvm.IRModule, name: str) -> tuple[tvm.IRModule, Returned]:
    """Leave out of a function's results each that is the very argument whose place it takes.

    Parameters
    ----------
    mod : IRModule
        Lowered: what is overwritten is decided.
    name : str
        A function that returns a flat tuple of tensors of known shapes. Its attribute `DONATED`
        says which parameter each result takes the place of.

    Returns
    -------
    mod : IRModule
        With the function changed.
    returned : Returned
    """
    function = mod[name]
    fields = list(function.body.body.fields)
    # A donation that lowering refused left its result in memory of its own: not the same variable.
    param_of_result = {
        int(result): int(param)
        for param, result in function.attrs[DONATED]
        if fields[result].same_as(function.params[param])
    }
    positions = [index for index in range(len(fields)) if index not in param_of_result]
    body = relax.SeqExpr(function.body.blocks, relax.Tuple([fields[index] for index in positions]))
    types = [function.ret_ty.fields[index] for index in positions]
    changed = mod.clone()
    changed[name] = replace_body(function, body, ret_ty=relax.TupleType(types))
    forms: list[Form] = [([int(extent) for extent in ty.shape], str(ty.dtype)) for ty in types]
    return changed, Returned(positions, forms, sorted(param_of_result.values()))
