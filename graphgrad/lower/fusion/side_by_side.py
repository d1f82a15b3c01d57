"""Two kernels as one that runs the stages of the first, then those of the second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import renew_defs

from ...ir.kernel_rewrite import rename_blocks, replace_statements
from ...ir.kernel_structure import stages, statements_of, substitute_values
from .merge import Part


def side_by_side(
    first: Part, second: Part, results: Sequence[Any] = (), kept: Sequence[bool] | None = None
) -> Part:
    """The kernel that does what two kernels made of stages do, and what it is called with.

    Parameters
    ----------
    first, second : Part
    results : sequence of Var
        The variables of the first kernel's results, in order, if the second may read some of them.
    kept : sequence of bool, optional
        Which results of the first are results of the whole; all if it is not given. The others
        become buffers within the kernel.

    Returns
    -------
    Part
        Its parameters are the arguments, each once; the kept results of the first, and those of
        the second.
    """
    # The two may be one function, called twice: the second gets variables of its own.
    first_kernel, second_kernel = first.kernel, renew_defs(second.kernel)
    count = len(first.arguments)
    arguments, params = list(first.arguments), list(first_kernel.params[:count])
    result_params = list(first_kernel.params[count:])
    params_of_values = [
        *zip(arguments, params, strict=True),
        *zip(results, result_params, strict=False),
    ]
    replaced_params: dict[Any, Any] = {}
    for argument, param in zip(second.arguments, second_kernel.params, strict=False):
        shared_param = next((p for value, p in params_of_values if value.same_as(argument)), None)
        if shared_param is not None:  # no two parameters may be one buffer
            replaced_params[param] = shared_param
            continue
        params_of_values.append((argument, param))
        arguments.append(argument)
        params.append(param)
    is_kept = [True] * len(result_params) if kept is None else kept
    inner_buffers = {
        p: tirx.decl_buffer(p.shape, str(p.dtype), str(p.name))
        for p, stays in zip(result_params, is_kept, strict=True)
        if not stays
    }
    body = substitute_values(second_kernel.body, replaced_params)
    used_names = {stage.name for stage in stages(first_kernel) or []}
    statements = [
        *statements_of(first_kernel.body.block.body),
        *(rename_blocks(statement, used_names) for statement in statements_of(body.block.body)),
    ]
    buffers = [*first_kernel.body.block.alloc_buffers, *body.block.alloc_buffers]
    joined = substitute_values(
        replace_statements(first_kernel.body, statements, buffers), inner_buffers
    )
    all_buffers = [*joined.block.alloc_buffers, *inner_buffers.values()]
    joined = replace_statements(joined, statements_of(joined.block.body), all_buffers)
    # Results come last, as `Part` has it.
    params += [p for p in result_params if p not in inner_buffers]
    params += second_kernel.params[len(second.arguments) :]
    return Part(tirx.PrimFunc(params, joined, attrs=first_kernel.attrs), arguments)
