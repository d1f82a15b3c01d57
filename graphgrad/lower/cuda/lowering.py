"""From a scheduled PrimFunc to device code, and the proof that nothing is left on the host.

TVM silently turns loops that no rule has bound to threads into host code, which would then read
device memory from the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ...errors import LoweringError
from ...ir.kernel_calls import RUNS_ON_HOST
from ...ir.kernel_structure import static
from ...ir.rewrite import map_kernels
from ...ir.visits import nodes_in
from ...tvm_fixes.hooks import tir_passes
from .intrinsics import widen_half, wrap_narrowed, write_exact_expressions
from .lanes import unroll_flags, widen_accesses
from .names import identifiers, name_launched

SCHEDULED = "tirx.is_scheduled"

PIPELINE = "graphgrad.cuda"
"""Name of TVM's lowering of PrimFuncs followed by our check, as `tvm.compile` takes it."""

_COMPACTION_PASS = "s_tir.CompactBufferAllocation"
"""TVM's pass that cuts buffers to what is used of them."""

_HOST_CALLS = frozenset({"__tvm_set_device"})
"""Functions that a host function calls to launch kernels, and that compute nothing."""

_PACKED_CALLS = frozenset(
    f"tirx.tvm_call_{kind}" for kind in ("packed", "cpacked", "packed_lowered", "cpacked_lowered")
)
"""Calls of functions that TVM knows by name, all of which run on the host."""

_MAX_BLOCK_THREADS = 1024
"""Threads of a block."""

_MAX_SHARED_BYTES = 48 * 1024
"""Shared memory that a block may declare in its source; more must be asked for at run time."""

_MAX_GRID = {"blockIdx.x": 2**31 - 1, "blockIdx.y": 65535, "blockIdx.z": 65535}
"""Blocks along the axes of a grid."""


def check(func: tirx.PrimFunc, target: tvm.target.Target) -> None:
    """Raise if a scheduled PrimFunc does not become device code alone, within a GPU's limits.

    Raises
    ------
    LoweringError
        Some of it would run on the host, or a block takes too many threads or too much memory.
    """
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    # The checks are in the pipeline, which raises; its result is not needed here.
    host = tvm.target.Target("llvm")
    mod = tirx.transform.BindTarget(target.with_host(host))(mod)
    tir_passes(PIPELINE)[0](mod)


def refuse_host_code(mod: tvm.IRModule, meant: frozenset[str] = frozenset()) -> None:
    """Raise if a lowered module computes anything on the host.

    Parameters
    ----------
    mod : IRModule
    meant : frozenset of str
        Functions that are meant for the host: those that compute shapes.

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
        if name.name_hint not in meant and (why := _host_work(func, launched))
    }
    if computing:
        details = ", ".join(f"{name} ({why})" for name, why in sorted(computing.items()))
        raise LoweringError(
            f"these kernels would run on the host, though compiled for a GPU: {details}"
        )


def refuse_calls_of_the_host(mod: tvm.IRModule) -> None:
    """Raise if a kernel of a lowered module calls a function that only the host has.

    Raises
    ------
    LoweringError
        Naming all such kernels and what they call.
    """
    calling = {
        name: callee for name, func in _device_functions(mod) if (callee := _host_callee(func))
    }
    if calling:
        details = ", ".join(f"{name} calls {callee}" for name, callee in sorted(calling.items()))
        raise LoweringError(f"a GPU cannot call functions of the host: {details}")


def _device_functions(mod: tvm.IRModule) -> list[tuple[str, tirx.PrimFunc]]:
    """The device functions of a lowered module, by name."""
    _, devices = split_host_device_mods(mod)
    return [
        (name.name_hint, func)
        for device in devices.values()
        for name, func in device.functions.items()
    ]


def _host_callee(func: tirx.PrimFunc) -> str:
    """The name of a function of the host that a kernel calls; empty if it calls none."""
    callees = (
        str(getattr(call.args[0], "value", call.args[0]))
        for call in nodes_in(func.body, tvm.ir.Call)
        if str(getattr(call.op, "name", "")) in _PACKED_CALLS
    )
    return next(callees, "")


def refuse_beyond_limits(mod: tvm.IRModule) -> None:
    """Raise if a kernel of a lowered module asks for more than any GPU has.

    Extents that are known at run time alone are left to the driver.

    Raises
    ------
    LoweringError
        Naming all such kernels.
    """
    beyond = {name: why for name, func in _device_functions(mod) if (why := _beyond_limits(func))}
    if beyond:
        details = ", ".join(f"{name} ({why})" for name, why in sorted(beyond.items()))
        raise LoweringError(f"these kernels exceed what a GPU has: {details}")


def _beyond_limits(func: tirx.PrimFunc) -> str:
    """The limit that a kernel exceeds, in words; empty if none."""
    extents = {
        str(launch.node.thread_tag): static(launch.value) or 1
        for launch in nodes_in(func.body, tirx.AttrStmt)
        if launch.attr_key == "thread_extent"
    }
    shared = 0
    for buffer in (allocation.buffer for allocation in nodes_in(func.body, tirx.AllocBuffer)):
        if buffer.scope() == "shared":
            elements = math.prod(static(extent) or 1 for extent in buffer.shape)
            shared += elements * -(-buffer.dtype.bits * buffer.dtype.lanes // 8)  # rounded up
    threads = math.prod(count for tag, count in extents.items() if tag.startswith("threadIdx"))
    if threads > _MAX_BLOCK_THREADS:
        return f"{threads} threads in a block, of at most {_MAX_BLOCK_THREADS}"
    if shared > _MAX_SHARED_BYTES:
        return f"{shared} bytes of shared memory, of at most {_MAX_SHARED_BYTES}"
    for tag, limit in _MAX_GRID.items():
        if extents.get(tag, 1) > limit:
            return f"{extents[tag]} blocks along {tag}, of at most {limit}"
    return ""


def _host_work(func: tirx.PrimFunc, launched: set[str]) -> str:
    """The work of a host function beyond launching kernels, in words; empty if nothing."""
    work: list[str] = []

    def call(node: Any) -> None:
        # Calls by name have the name as their first argument.
        callee = node.args[0] if node.args else None
        if isinstance(callee, tvm.ir.StringImm) and "call" in str(getattr(node.op, "name", "")):
            name = str(callee.value)
            if name not in launched and name not in _HOST_CALLS:
                work.append(f"it calls {name}")

    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.BufferStore, lambda _: work.append("it stores to memory")),
            (tirx.While, lambda _: work.append("it loops")),
            (tvm.ir.Call, call),
        ],
    )
    return work[0] if work else ""


def _map_device_functions(
    mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """A module with its functions for GPUs changed."""

    def changed(_: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
        return change(func) if str(func.attrs["target"].kind.name) == "cuda" else func

    return map_kernels(mod, changed)


def _lowered(mod: tvm.IRModule, lower: tvm.transform.Pass) -> tvm.IRModule:
    """A module lowered by TVM, with buffers cut to what is used of them only where needed.

    Kernels with tiles in shared memory need that. In others it does harm: for a buffer of symbolic
    shape between two launches, TVM would compute the extent from the index of a thread, outside of
    any launch. So the two sorts of kernels are lowered apart.
    """
    tiled = {
        name: func
        for name, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and _holds_tiles(func)
    }
    without_tiles = {name: func for name, func in mod.functions.items() if name not in tiled}
    current = tvm.transform.PassContext.current()
    without_cutting = tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=[*current.disabled_pass, _COMPACTION_PASS],
        instruments=list(current.instruments),
        config=dict(current.config),
    )
    lowered = lower(tvm.IRModule(tiled, attrs=mod.attrs))
    with without_cutting:
        lowered_without_tiles = lower(tvm.IRModule(without_tiles, attrs=mod.attrs))
    names_of_parts = [
        {name.name_hint for name in part.functions} for part in (lowered, lowered_without_tiles)
    ]
    if common := names_of_parts[0] & names_of_parts[1]:
        raise LoweringError(
            f"two kernels have the name {', '.join(sorted(common))}; rename the PrimFuncs"
        )
    lowered.update(lowered_without_tiles)
    return lowered


def _holds_tiles(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc has buffers in shared memory or in registers."""
    buffers = (buffer for block in nodes_in(func.body, SBlock) for buffer in block.alloc_buffers)
    return any(buffer.scope() != "global" for buffer in buffers)


def _pipeline() -> tuple[Any, Any, Any]:
    """The lowering of a module and the last passes over host and device code, as TVM takes them."""
    lower, finalize_host, finalize_device = tir_passes("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower_cuda")
    def lower_and_check(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        host_functions = frozenset(
            name.name_hint
            for name, func in mod.functions.items()
            if str(func.attrs["target"].kind.name) != "cuda" or RUNS_ON_HOST in func.attrs
        )
        wide = _map_device_functions(mod, lambda func: widen_accesses(unroll_flags(func)))
        exact = _map_device_functions(wide, lambda func: wrap_narrowed(widen_half(func)))
        lowered = _lowered(exact, lower)
        refuse_host_code(lowered, host_functions)
        refuse_calls_of_the_host(lowered)
        refuse_beyond_limits(lowered)
        return name_launched(_map_device_functions(lowered, identifiers))

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.write_exact_expressions")
    def write_exact(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return _map_device_functions(mod, write_exact_expressions)

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([finalize_device(), write_exact])

    return lower_and_check, finalize_host, finalize


register_tir_pipeline(PIPELINE, _pipeline)
