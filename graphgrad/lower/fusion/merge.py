"""Two kernels as one: a reduction, and the map that alone takes one of its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, renew_defs

from ...ir.kernel_rewrite import rename_blocks
from ...ir.kernel_structure import stages, statements_of, substitute_values
from ...ir.loops import block
from ..kernels.epilogue import epilogues_of
from ..kernels.inline_maps import inline_maps


@dataclass(frozen=True)
class Part:
    """A kernel and what it is called with: its parameters are these, then its results."""

    kernel: tirx.PrimFunc
    arguments: list[Any]


def fuse_epilogue(producer: Part, output: int, consumer: Part, position: int) -> Part | None:
    """The kernel that computes a reduction and, from each of its results, a map.

    Parameters
    ----------
    producer : Part
    output : int
        Which of its results the consumer takes; nothing else does.
    consumer : Part
        Of one result.
    position : int
        As which argument it takes it.

    Returns
    -------
    Part or None
        The consumer's result takes the place of what it took, of which no more than a tile is ever
        kept; None where that cannot be.
    """
    first, second = producer.kernel, _one_map(consumer.kernel)
    found = stages(first)
    if second is None or found is None:
        return None
    params = list(first.params[: len(producer.arguments)])
    results = list(first.params[len(producer.arguments) :])
    second = _bind_extents(second, second.params[position], results[output])
    arguments = list(producer.arguments)
    between = tirx.decl_buffer(results[output].shape, results[output].dtype, "gradient")
    values = {results[output]: between, second.params[position]: between}
    results[output] = second.params[-1]
    for i, argument in enumerate(consumer.arguments):
        same = [p for p, a in zip(params, arguments, strict=True) if a.same_as(argument)]
        if i == position:
            continue
        if same:  # no two parameters may be one buffer
            values[second.params[i]] = same[0]
        else:
            params.append(second.params[i])
            arguments.append(argument)
    map_nest = rename_blocks(second.body.block.body, {stage.name for stage in found})
    root = first.body.block
    own = [*root.alloc_buffers, between]
    whole = substitute_values(
        block("root", *statements_of(root.body), map_nest, buffers=own), values
    )
    kernel = tirx.PrimFunc([*params, *results], whole, attrs=first.attrs)
    return Part(kernel, arguments) if _hands_over(kernel, between) else None


def _bind_extents(kernel: tirx.PrimFunc, taken: Any, made: Any) -> tirx.PrimFunc:
    """A kernel in which a parameter's symbolic extents are those of another buffer.

    A buffer that is handed over tells nobody what its extents are; other parameters must.
    """
    pairs = zip(taken.shape, made.shape, strict=True)
    names = {extent: name for extent, name in pairs if isinstance(extent, tvm.ir.Var)}
    return tvm_ffi.structural_map(kernel, (tvm.ir.Var, lambda var: names.get(var, var)))


def _one_map(kernel: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A kernel of maps as one map; None if it is something else."""
    found = stages(kernel)
    if found is None or any(stage.reduced for stage in found):
        return None
    sch = Schedule(kernel)
    rest = inline_maps(sch, lambda *_: True)
    # One kernel may be merged with several: each time its variables are others.
    return renew_defs(kernel.with_body(sch.mod["main"].body)) if len(rest) == 1 else None


def _hands_over(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a buffer is between a reduction and its epilogue, or between two maps."""
    found = stages(kernel) or []
    internal = list(kernel.body.block.alloc_buffers)
    (stage,) = [s for s in found if any(store.buffer.same_as(buffer) for store in s.stores)]
    epilogues = epilogues_of(stage, found, internal)
    return not stage.reduced or any(epilogue.taken.same_as(buffer) for epilogue in epilogues)
