"""From a scheduled PrimFunc to device code, and the proof that nothing is left on the host.

TVM turns loops that no rule has bound to threads into host code without a word: they would
then read device memory from the host.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

from ...errors import LoweringError

SCHEDULED = "tirx.is_scheduled"

PIPELINE = "graphgrad.cuda"
"""Name of TVM's lowering of PrimFuncs followed by our check, as `tvm.compile` takes it."""

_HOST_CALLS = frozenset({"__tvm_set_device"})

_MOST_THREADS = 1024
_SHARED_BYTES = 48 * 1024


def check(func: tirx.PrimFunc, target: tvm.target.Target) -> None:
    """Raise if a scheduled PrimFunc does not become device code alone, within a GPU's limits.

    Raises
    ------
    LoweringError
        Some of it would run on the host, or a block takes too many threads or too much memory.
    """
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    host = tvm.target.Target("llvm")
    mod = tirx.transform.BindTarget(target.with_host(host))(mod)
    PIPELINE_MAP[PIPELINE]()[0](mod)


def refuse_host_code(mod: tvm.IRModule) -> None:
    """Raise if a lowered module computes anything on the host.

    Raises
    ------
    LoweringError
        Naming all such kernels.
    """
    host, devices = split_host_device_mods(mod)
    launched = {name.name_hint for device in devices.values() for name in device.functions}
    computing = {
        name.name_hint: why
        for name, func in host.functions.items()
        if (why := _host_work(func, launched))
    }
    if computing:
        details = ", ".join(f"{name} ({why})" for name, why in sorted(computing.items()))
        raise LoweringError(
            f"these kernels would run on the host, though compiled for a GPU: {details}"
        )


def _host_work(func: tirx.PrimFunc, launched: set[str]) -> str:
    """Return what a host function does beyond launching kernels, in words; empty if nothing."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore):
            found.append("it stores to memory")
        elif isinstance(node, tirx.While):
            found.append("it loops")
        elif isinstance(node, tvm.ir.Call) and node.args:
            callee = node.args[0]
            if isinstance(callee, tvm.ir.StringImm) and "call" in str(getattr(node.op, "name", "")):
                name = str(callee.value)
                if name not in launched and name not in _HOST_CALLS:
                    found.append(f"it calls {name}")

    tvm_ffi.structural_walk(func.body, visit)
    return found[0] if found else ""


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finalize_host, finalize_device = PIPELINE_MAP["s_tir"]()

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower_cuda")
    def lower_and_check(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        lowered = lower(mod)
        refuse_host_code(lowered)
        return lowered

    return lower_and_check, finalize_host, finalize_device


register_tir_pipeline(PIPELINE, _pipeline)
