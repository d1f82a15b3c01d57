"""What the calls of a lowered CUDA program cost: launches, bytes, and the time that these need.

A call of a kernel counts with the launches in it; a call of cuDNN as one. Bytes: each tensor counts
once if it is read, and once if it is written. Of one of which few elements are read, these count if
they are rows, and otherwise the 32 bytes around each; what a launch surely wrote before is in a
cache, and not read. Buffers between the launches of a kernel count twice, workspaces twice. The
time of a call is the largest of bytes / speed of memory, operations / rate, and the time of its
launches: what no kernel could beat, not what these kernels take.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlockRealize

from ...ir.kernel_structure import buffer_of, static, substitute_values
from ...ir.tensor import bits
from ...ir.visits import nodes_in
from ...ir.warps import WARP
from ...runtime.cudnn.engine import NAME
from ...runtime.cudnn.plans import Plan
from .library.cost import RATES, Rates, bytes_moved, seconds_by_library
from .tensor_cores.device import multiplied

SECTOR = 32
"""Bytes of memory that the smallest access moves."""

_COUNTED = (tirx.For, tirx.AllocBuffer, SBlockRealize)
"""What counts once for each trip of the host's loops around it."""


@dataclass(frozen=True)
class Cost:
    """What a call of a kernel, or of cuDNN, costs.

    Attributes
    ----------
    name : str
        Of the kernel, or of what cuDNN computes.
    launches : int
    bytes : int
        Read and written.
    seconds : float
    is_of_library : bool
        Whether cuDNN computes it.
    """

    name: str
    launches: int
    bytes: int
    seconds: float
    is_of_library: bool = False


def call_costs(mod: tvm.IRModule, function: str, capability: int) -> list[Cost]:
    """The costs of the calls in a function of a lowered module, in order.

    Parameters
    ----------
    mod : IRModule
        As `pipeline.lower` makes it for CUDA.
    function : str
        The name of the Relax function.
    capability : int
        The compute capability of the device, one of those in `library.cost.RATES`.
    """
    return list(_call_costs(mod, function, RATES[capability]))


def _call_costs(mod: tvm.IRModule, function: str, rates: Rates) -> Iterator[Cost]:
    costs: dict[str, Cost] = {}
    for call in nodes_in(mod[function], tvm.ir.Call):
        if _calls_library(call):
            yield library_cost(call)
        elif isinstance(call.op, tvm.ir.GlobalVar):
            name = str(call.op.name_hint)
            if isinstance(mod[name], tirx.PrimFunc):
                if name not in costs:
                    costs[name] = kernel_cost(name, mod[name], rates)
                yield costs[name]


def library_cost(call: Any) -> Cost:
    """What a call of cuDNN costs, by the plan among its arguments."""
    plan = _plan_of(call)
    seconds = seconds_by_library(plan, share=1.0)
    return Cost(f"cuDNN {plan.problem.op}", 1, bytes_moved(plan), seconds, is_of_library=True)


def library_plans(mod: tvm.IRModule, function: str) -> list[Plan]:
    """The plans of the calls of cuDNN in a function of a lowered module, in order."""
    calls = nodes_in(mod[function], tvm.ir.Call)
    return [_plan_of(call) for call in calls if _calls_library(call)]


def _calls_library(call: Any) -> bool:
    return isinstance(call.op, relax.ExternFunc) and str(call.op.global_symbol) == NAME


def _plan_of(call: Any) -> Plan:
    text, *_ = (str(each.value) for each in nodes_in(call, tvm.ir.StringImm))
    return Plan.from_json(text)


def kernel_cost(name: str, func: tirx.PrimFunc, rates: Rates) -> Cost:
    """What a call of a scheduled kernel costs."""
    hosts = _loops_of_host(func)
    launches = sum(
        _trips(loop, hosts) for loop in nodes_in(func.body, tirx.For) if _is_launch(loop)
    )
    moved = _bytes_of_parameters(func)
    root = getattr(func.body, "block", None)
    between = [] if root is None else [(buffer, 1) for buffer in root.alloc_buffers]
    between += [(a.buffer, _trips(a, hosts)) for a in nodes_in(func.body, tirx.AllocBuffer)]
    moved += 2 * sum(trips * _bytes(b) for b, trips in between if b.scope() == "global")
    computed = _operations(func) / rates.single + _seconds_on_tensor_cores(func, rates)
    launched = max(launches, 1)
    return Cost(
        name, launched, int(moved), max(moved / rates.bytes, computed, launched * rates.launch)
    )


def _is_launch(loop: Any) -> bool:
    """Whether a loop is over the blocks of a launch."""
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag) == "blockIdx.x"


def _loops_of_host(func: tirx.PrimFunc) -> list[tuple[int, list[Any]]]:
    """The trips of loops around launches, and what is in them."""
    return [
        (static(loop.extent) or 1, nodes_in(loop.body, _COUNTED))
        for loop in nodes_in(func.body, tirx.For)
        if loop.thread_binding is None and any(map(_is_launch, nodes_in(loop.body, tirx.For)))
    ]


def _trips(node: Any, hosts: Sequence[tuple[int, list[Any]]]) -> int:
    """How often the host comes to something that is in its loops."""
    return math.prod(trips for trips, inner in hosts if any(node.same_as(each) for each in inner))


def _bytes(tensor: Any) -> int:
    extents = [static(extent) or 1 for extent in tensor.shape]
    return math.prod(extents) * bits(str(tensor.dtype)) // 8


def _bytes_of_parameters(func: tirx.PrimFunc) -> float:
    """What a kernel reads and writes of the tensors that it is called with."""
    reads, written = _traffic(func)
    moved = 0.0
    for each in func.params:
        if hasattr(each.ty, "shape"):
            size = _bytes(each.ty)
            # One without accesses may be read through a pointer.
            read = reads.get(each, 0 if each in written else math.inf)
            moved += min(size, read) + (size if each in written else 0)
    return moved


def _traffic(func: tirx.PrimFunc) -> tuple[dict[Any, float], set[Any]]:
    """How many bytes at most a kernel reads of each tensor, and which tensors it writes.

    Views count as what they view. Each launch reads what it has not surely written before.
    """
    views: dict[Any, Any] = {}
    for each in nodes_in(func.body, tirx.DeclBuffer):
        viewed, *others = nodes_in(each.data, tvm.ir.Var)
        if not others:  # an address in a table has the row, too
            views[each.buffer] = views.get(viewed, viewed)
    reads: dict[Any, float] = {}
    written: set[Any] = set()
    cached: set[Any] = set()
    named = {each.var for each in nodes_in(func.body, tirx.Bind)}
    for node, runs, is_sure in _accesses(func.body, 1):
        if isinstance(node, tirx.For):
            cached.clear()
            continue
        buffer = buffer_of(node)
        tensor = views.get(buffer, buffer)
        if isinstance(node, tirx.BufferStore):
            written.add(tensor)
            if is_sure:
                cached.add(tensor)
        elif tensor not in cached:
            reads[tensor] = reads.get(tensor, 0) + runs * _bytes_of_read(node, named)
    return reads, written


def _bytes_of_read(access: Any, named: Container[Any]) -> int:
    """What a load of an element moves: a sector, or the element where rows are read in order.

    `named` are variables that stand for any value.
    """
    width = bits(str(access.source.dtype)) // 8
    if not access.indices or (static(access.source.shape[-1]) or 0) * width < SECTOR:
        return SECTOR
    last = access.indices[-1]
    variables = list(dict.fromkeys(nodes_in(last, tvm.ir.Var)))
    if nodes_in(last, tvm.ir.TensorLoad) or any(each in named for each in variables):
        return SECTOR
    start = {each: tirx.const(0, str(each.ty)) for each in variables}
    analyzer = tvm.sym.Analyzer()

    def at(values: dict[Any, Any]) -> Any:
        return analyzer.simplify(substitute_values(last, values))

    begin = at(start)
    is_in_order = any(
        static(analyzer.simplify(at(start | {each: tirx.const(1, str(each.ty))}) - begin)) == 1
        for each in variables
    )
    return width if is_in_order else SECTOR


def _accesses(
    statement: Any, runs: float, is_sure: bool = True
) -> Iterator[tuple[Any, float, bool]]:
    """Yield launches, and loads and stores in order: how often each runs at most, and if surely."""
    if isinstance(statement, tirx.For):
        if _is_launch(statement):
            yield statement, runs, is_sure
        trips = static(statement.extent)
        if trips != 0:
            times = runs * (math.inf if trips is None else trips)
            yield from _accesses(statement.body, times, is_sure)
    elif isinstance(statement, tirx.SeqStmt):
        for each in statement.seq:
            yield from _accesses(each, runs, is_sure)
    elif isinstance(statement, SBlockRealize):
        for each in filter(None, (statement.block.init, statement.block.body)):
            yield from _accesses(each, runs, is_sure)
    elif isinstance(statement, tirx.IfThenElse):
        yield from _accesses(tirx.Evaluate(statement.condition), runs, is_sure)
        for each in filter(None, (statement.then_case, statement.else_case)):
            yield from _accesses(each, runs, is_sure=False)
    else:  # loads and stores; what encloses others in another way may run any number of times
        times = math.inf if hasattr(statement, "body") else runs
        accesses = (tvm.ir.TensorLoad, tirx.BufferStore)
        yield from ((each, times, is_sure) for each in nodes_in(statement, accesses))


def _operations(func: tirx.PrimFunc) -> int:
    """Two for each point of the loops of a block that adds up; one for those of others."""
    total, hosts = 0, _loops_of_host(func)
    for realize in nodes_in(func.body, SBlockRealize):
        block = realize.block
        points = math.prod(static(each.dom.extent) or 1 for each in block.iter_vars)
        total += _trips(realize, hosts) * points * (2 if block.init is not None else 1)
    return total


def _seconds_on_tensor_cores(func: tirx.PrimFunc, rates: Rates) -> float:
    """The time of what warps multiply on tensor cores, in each trip of the loop over stages."""
    total, hosts = 0.0, _loops_of_host(func)
    for launch in filter(_is_launch, nodes_in(func.body, tirx.For)):
        for stages in nodes_in(launch.body, tirx.For):
            if int(stages.kind) != tirx.ForKind.SERIAL:
                continue
            for number, operations in filter(None, map(multiplied, nodes_in(stages, tvm.ir.Call))):
                warps = _threads(launch) // WARP
                done = int(launch.extent) * warps * (int(stages.extent) - 1) * operations
                total += _trips(launch, hosts) * done / (rates.of(number) * rates.by_warps)
    return total


def _threads(launch: Any) -> int:
    """Threads of a block."""
    loops = [each for each in nodes_in(launch.body, tirx.For) if each.thread_binding is not None]
    return math.prod(int(each.extent) for each in loops)
