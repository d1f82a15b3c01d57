"""Launches of a kernel that do not depend on each other, as one: a launch takes some microseconds.

Those are joined that are small, whatever they do, and reductions by warps, of which a test that
many tensors are finite has one for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_rewrite import with_body
from ...ir.kernel_structure import Load, buffer_of, is_among, static, substitute_values
from ...ir.loops import load, sequence, store
from ...ir.visits import nodes_in, replace_nodes
from ..cpu.buffer_views import address
from .contraction import used_buffers
from .rows import is_shuffle
from .threads import one_launch

_MAX_SMALL_BLOCKS = 64
"""Blocks of a small launch at most: they leave most of a GPU idle."""

_MAX_JOINED = 128
"""Launches that are joined at most: the addresses of their tensors are parameters of one kernel."""


def join_launches(kernels: Sequence[Any], plain: Sequence[Any], params: Sequence[Any]) -> list[Any]:
    """The launches of a kernel in an order that gives the same, some of them joined.

    Parameters
    ----------
    kernels : sequence of For
        In order.
    plain : sequence of For
        Those of them whose threads do not wait for others of their block.
    params : sequence of Var
        Those of the kernel, buffers and perhaps numbers. A result that may come to overwrite an
        argument of its type is not joined with anything: what proves that it may reads plain loops.
    """
    waves: list[list[Any]] = []
    for kernel, number in zip(kernels, _waves(kernels), strict=True):
        waves.extend([] for _ in range(number + 1 - len(waves)))
        waves[number].append(kernel)
    ordered: list[Any] = []
    for wave in waves:
        joinable = [kernel for kernel in wave if is_among(kernel, plain)]
        joinable = [kernel for kernel in joinable if not _may_overwrite(kernel, params)]
        shuffling = [kernel for kernel in joinable if _shuffles(kernel)]
        small = [k for k in joinable if _is_small(k) and not is_among(k, shuffling)]
        ordered += [k for k in wave if not is_among(k, [*shuffling, *small])]
        for group in (shuffling, small):
            for first in range(0, len(group), _MAX_JOINED):
                ordered.append(_joined(group[first : first + _MAX_JOINED], params))
    return ordered


def _waves(kernels: Sequence[Any]) -> list[int]:
    """For each kernel the length of the longest chain of those that must run before it."""
    touched = [used_buffers([kernel]) for kernel in kernels]
    waves: list[int] = []
    for used, written in touched:
        before = [
            wave + 1
            for wave, (other_used, other_written) in zip(waves, touched, strict=False)
            if any(is_among(b, other_used) for b in written)
            or any(is_among(b, other_written) for b in used)
        ]
        waves.append(max(before, default=0))
    return waves


def _joined(group: list[Any], params: Sequence[Any]) -> Any:
    """One launch that does what several do."""
    if len(group) == 1:
        return group[0]
    group = [flattened(kernel, params) for kernel in group]
    threads = max(int(kernel.body.extent) for kernel in group)

    def part(kernel: Any, block: Any, thread: Any) -> Any:
        values = {kernel.loop_var: block, kernel.body.loop_var: thread}
        body = substitute_values(kernel.body.body, values)
        own = int(kernel.body.extent)
        return body if own == threads else tirx.IfThenElse(thread < own, body, None)

    return one_launch([(int(k.extent), partial(part, k)) for k in group], threads)


def flattened(kernel: Any, params: Sequence[Any]) -> Any:
    """A launch that accesses parameters by the numbers of their elements.

    In a joint launch a block has a number less another one, and TVM would not see any more that an
    element's number, made indices, is made the same number again.
    """
    analyzer = tvm.sym.Analyzer()
    for each in nodes_in(kernel, tirx.For):
        analyzer.bind(each.loop_var, tvm.ir.Range.from_min_extent(each.min, each.extent))
    flat: dict[Any, Any] = {}

    def number(access: Any) -> Any | None:
        buffer = buffer_of(access)
        if len(buffer.shape) < 2 or not is_among(buffer, params):
            return None
        if buffer not in flat:
            flat[buffer] = tirx.decl_buffer([math.prod(buffer.shape)], str(buffer.dtype), "flat")
        return analyzer.simplify(address(buffer, list(access.indices)))

    def loaded(access: Any) -> Any:
        at = number(access)
        return access if at is None else load(flat[access.source], [at])

    def stored(access: Any) -> Any:
        at = number(access)
        return access if at is None else store(flat[access.buffer], [at], access.value)

    body = replace_nodes(kernel.body.body, Load, loaded)
    body = replace_nodes(body, tirx.BufferStore, stored)
    declared = [tirx.DeclBuffer(line, data=buffer.data) for buffer, line in flat.items()]
    return with_body(kernel, with_body(kernel.body, sequence(*declared, body)))


def _is_small(kernel: Any) -> bool:
    blocks = static(kernel.extent)
    return blocks is not None and blocks <= _MAX_SMALL_BLOCKS


def _shuffles(kernel: Any) -> bool:
    """Whether threads of a kernel exchange values."""
    return static(kernel.extent) is not None and any(map(is_shuffle, nodes_in(kernel, tvm.ir.Call)))


def _may_overwrite(kernel: Any, params: Sequence[Any]) -> bool:
    """Whether a kernel stores a result that might take the place of an argument."""
    _, written = used_buffers([kernel])
    return any(
        tvm_ffi.structural_equal(list(result.shape), list(param.shape))
        and result.dtype == param.dtype
        for result in written
        if is_among(result, params)
        for param in params
        if hasattr(param, "shape") and not param.same_as(result)
    )
