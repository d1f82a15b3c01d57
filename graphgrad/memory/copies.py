"""Copies that the program asks for stay copies.

TVM replaces a kernel that leaves all elements in their order by a view of its input, unless the
result is used outside of its dataflow block. For a reshape that is wanted. But who asks for a copy
wants memory that is shared with nothing.
"""

from __future__ import annotations

from typing import Any

import tvm

from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import leave_dataflow, map_functions
from ..ops.copy import KERNEL_OF_COPY


@compiler_pass(
    Phase.DONATED,
    before={"RewriteDataflowReshape": "it makes a view of a copy that stays in its dataflow block"},
)
def keep_copies(mod: tvm.IRModule) -> tvm.IRModule:
    """Bind copies to variables that are visible outside of their dataflow blocks."""
    return map_functions(
        mod, lambda _, func: leave_dataflow(func, lambda binding: _is_copy(mod, binding.value))
    )


def _is_copy(mod: tvm.IRModule, value: Any) -> bool:
    if not isinstance(value, tvm.ir.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    return KERNEL_OF_COPY in (mod[value.args[0]].attrs or {})
