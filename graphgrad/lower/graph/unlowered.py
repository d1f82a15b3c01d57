"""Checks that a lowered program has no ops left that its target cannot run."""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import relax

from ...errors import LoweringError
from ...ir.passes import Phase, compiler_pass
from ...ir.visits import nodes_in

_HOST_OPS = "relax.run."
"""The prefix of the Python functions that TVM lowers some ops to; they run on the host."""

_READING = ("relax.run.assert_op", "relax.run.print")
"""Those of them that only read their tensors, which may be on any device."""


@compiler_pass(Phase.MACHINE)
def refuse_unlowered(mod: tvm.IRModule) -> None:
    """Raise if an op is left that the virtual machine has no instruction for.

    Raises
    ------
    LoweringError
        Naming all such ops.
    """
    remaining = Counter(
        str(call.op.name)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for call in nodes_in(func, tvm.ir.Call)
        if isinstance(call.op, tvm.ir.Op) and not _is_instruction(str(call.op.name))
    )
    if remaining:
        ops = ", ".join(f"{name} ({count}×)" for name, count in sorted(remaining.items()))
        raise LoweringError(
            f"no lowering exists for: {ops}; replace them by other ops, or give each an FLegalize"
        )


@compiler_pass(
    Phase.MACHINE,
    targets=("cuda",),
    after={"refuse_unlowered": "what no target has is the first thing to say"},
)
def refuse_host_ops(mod: tvm.IRModule) -> None:
    """Raise if an op is left to a function of TVM that returns a tensor on the host.

    Packed functions that the caller has registered under other names are allowed, and so are the
    virtual machine's, which work on every device.

    Raises
    ------
    LoweringError
        Naming all such ops, and the functions that hold them.
    """
    host_ops: Counter[tuple[str, str]] = Counter()
    for variable, func in mod.functions.items():
        if isinstance(func, relax.Function):
            host_ops.update((name, variable.name_hint) for name in _host_ops(func))
    if host_ops:
        ops = ", ".join(f"{op} ({n}×, in {func!r})" for (op, func), n in sorted(host_ops.items()))
        raise LoweringError(
            f"no CUDA lowering exists for: {ops}; TVM runs them on the host. Replace them by other "
            "ops, or compile for an llvm target"
        )


def _host_ops(func: relax.Function) -> list[str]:
    """The names of a function's ops that are left to Python functions of TVM."""
    callees = (call.op for call in nodes_in(func, tvm.ir.Call))
    names = [str(op.global_symbol) for op in callees if isinstance(op, relax.ExternFunc)]
    return [
        name.replace(_HOST_OPS, "relax.")
        for name in names
        if name.startswith(_HOST_OPS) and name not in _READING
    ]


def _is_instruction(op: str) -> bool:
    """Whether the virtual machine, or its compiler, has an instruction for an op."""
    # `prim.` are the operators of extents, such as the `if_then_else` of a symbolic slice.
    return op in ("relax.call_builtin_with_ctx", "relax.null_value") or op.startswith(
        ("relax.vm.", "relax.memory.", "prim.")
    )
