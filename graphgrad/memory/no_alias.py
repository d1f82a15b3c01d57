"""Whether the buffers of a kernel may share memory: one answer for all kernels of a module.

A kernel promises that its buffers share none by the attribute ``tirx.noalias``. TVM's code
generator for processors declares all functions of a module before it generates the first, and
remembers only the attribute of the last one. So one function without the promise makes all others
slower, and, far worse, one with it has the promise assumed of kernels that never gave it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import map_kernels
from ..ir.visits import nodes_in

_NOALIAS = "tirx.noalias"
_OUT_OF_PLACE = tvm.ir.Op.get("relax.call_tir")


@compiler_pass(
    Phase.SCHEDULED,
    targets=("llvm",),
    because="what call_tir calls overwrites nothing, until donation has proved that it may",
)
def unify_noalias(mod: tvm.IRModule) -> tvm.IRModule:
    """Give all kernels the promise that their buffers share no memory, or take it from all.

    A kernel that is called by ``call_tir`` alone writes to fresh memory, and may promise it. Any
    other one may not, unless it has the attribute already. If there is one that may not, no kernel
    of the module promises anything.
    """
    may_overlap = _called_otherwise(mod)
    if all(
        _has_noalias(func) or variable.name_hint not in may_overlap
        for variable, func in _kernels(mod)
    ):
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
    """Give kernels that lowering has added the attribute, if the others have it."""
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
    """The kernels that something else than `call_tir` mentions, or that nothing calls.

    Who calls the latter from outside of the module may pass anything.
    """
    otherwise: set[str] = set()
    called: set[str] = set()

    for call in (c for func in mod.functions.values() for c in nodes_in(func, tvm.ir.Call)):
        arguments = (call.op, *call.args)
        names = [a.name_hint for a in arguments if isinstance(a, tvm.ir.GlobalVar)]
        called.update(names)
        if call.op != _OUT_OF_PLACE:
            otherwise.update(names)
    return otherwise | ({variable.name_hint for variable, _ in _kernels(mod)} - called)
