"""Two kernels as one that does what both do, the first one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import renew_defs

from ...ir.kernel_rewrite import rename_blocks, replace_statements
from ...ir.kernel_structure import stages, statements_of, substitute_values
from .merge import Part


def side_by_side(
    one: Part, other: Part, results: Sequence[Any] = (), kept: Sequence[bool] | None = None
) -> Part:
    """The kernel of two kernels that are made of stages, and what it is called with.

    Parameters
    ----------
    one, other : Part
    results : sequence of Var
        What the calls of the first make, in order, if the second may read some of it.
    kept : sequence of bool, optional
        Which results of the first are results of the whole; all if it is not given. What is not
        kept lives within the kernel.

    Returns
    -------
    Part
        Its parameters are the arguments, each once; the kept results of the first, and those of
        the second.
    """
    first, second = one.kernel, renew_defs(other.kernel)
    count = len(one.arguments)
    arguments, params = list(one.arguments), list(first.params[:count])
    made = list(first.params[count:])
    known = [*zip(arguments, params, strict=True), *zip(results, made, strict=False)]
    values: dict[Any, Any] = {}
    for argument, param in zip(other.arguments, second.params, strict=False):
        same = next((p for a, p in known if a.same_as(argument)), None)
        if same is not None:  # no two parameters may be one buffer
            values[param] = same
            continue
        known.append((argument, param))
        arguments.append(argument)
        params.append(param)
    stays = [True] * len(made) if kept is None else kept
    inside = {
        p: tirx.decl_buffer(p.shape, str(p.dtype), str(p.name))
        for p, stay in zip(made, stays, strict=True)
        if not stay
    }
    body = substitute_values(second.body, values)
    taken = {stage.name for stage in stages(first) or []}
    statements = [
        *statements_of(first.body.block.body),
        *(rename_blocks(statement, taken) for statement in statements_of(body.block.body)),
    ]
    buffers = [*first.body.block.alloc_buffers, *body.block.alloc_buffers]
    whole = substitute_values(replace_statements(first.body, statements, buffers), inside)
    own = [*whole.block.alloc_buffers, *inside.values()]
    whole = replace_statements(whole, statements_of(whole.block.body), own)
    params += [p for p in made if p not in inside]
    params += second.params[len(other.arguments) :]
    return Part(tirx.PrimFunc(params, whole, attrs=first.attrs), arguments)
