"""Whether the buffers of a kernel may share memory: one answer for all kernels of a module.

TVM's generator of code for processors asks each function, by the attribute ``tirx.noalias``, when
it declares it; all are declared before the first is generated, and what the last one answered
holds for all. So one function that does not promise it slows all others down, and, far worse, a
promise is kept for kernels that never gave it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_kernels
from ..ir.visits import visit_nodes

_NOALIAS = "tirx.noalias"
_OUT_OF_PLACE = tvm.ir.Op.get("relax.call_tir")


@compiler_pass(
    Phase.SCHEDULED,
    targets=("llvm",),
    because="what call_tir calls overwrites nothing, until donation has proved that it may",
)
def unify_noalias(mod: tvm.IRModule) -> tvm.IRModule:
    """Have all kernels promise that buffers do not overlap, or none of them.

    A kernel that is called by ``call_tir`` alone writes to fresh memory: it may promise. One that
    overwrites what it is given may not, unless it says so itself; then no kernel of the module
    promises anything.
    """
    shared = _called_otherwise(mod)
    if all(_has_noalias(func) or v.name_hint not in shared for v, func in _kernels(mod)):
        return _add_noalias(mod)
    return map_kernels(mod, lambda _, func: func.without_attr(_NOALIAS))


@compiler_pass(
    Phase.MACHINE,
    after={
        "ComputePrimValue": "it adds kernels that compute numbers",
        "VMShapeLower": "it adds kernels that compute shapes",
    },
)
def keep_noalias(mod: tvm.IRModule) -> tvm.IRModule:
    """Have kernels that lowering has added promise what the others do."""
    return _add_noalias(mod) if any(_has_noalias(func) for _, func in _kernels(mod)) else mod


def _add_noalias(mod: tvm.IRModule) -> tvm.IRModule:
    return map_kernels(
        mod, lambda _, func: func if _has_noalias(func) else func.with_attr(_NOALIAS, True)
    )


def _has_noalias(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and bool(func.attrs.get(_NOALIAS))


def _kernels(mod: tvm.IRModule) -> list[tuple[Any, tirx.PrimFunc]]:
    return [(v, f) for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


def _called_otherwise(mod: tvm.IRModule) -> set[str]:
    """The kernels that something else than `call_tir` mentions, or nothing at all does."""
    otherwise: set[str] = set()
    called: set[str] = set()

    def visit(call: tvm.ir.Call) -> None:
        names = [a.name_hint for a in (call.op, *call.args) if isinstance(a, tvm.ir.GlobalVar)]
        called.update(names)
        if call.op != _OUT_OF_PLACE:
            otherwise.update(names)

    for func in mod.functions.values():
        visit_nodes(func, tvm.ir.Call, visit)
    return otherwise | ({variable.name_hint for variable, _ in _kernels(mod)} - called)
