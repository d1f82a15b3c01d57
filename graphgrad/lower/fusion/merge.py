"""Two kernels as one: a reduction, and the map that is the only reader of one of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import renew_defs

from ...ir.kernel_calls import drop_unused_kernels, map_dataflow_blocks
from ...ir.kernel_rewrite import rename_blocks
from ...ir.kernel_structure import stages, statements_of, substitute_values
from ...ir.loops import block
from ..kernels.epilogue import epilogues_of
from ..kernels.inline_maps import inline_maps
from ..kernels.unique_bindings import schedule_of


@dataclass(frozen=True)
class Part:
    """A kernel with the arguments of a call: its parameters are these arguments, then results."""

    kernel: tirx.PrimFunc
    arguments: list[Any]


class MergedKernels:
    """The kernels of a module, and those that a pass makes of them; of equal ones it makes one.

    Attributes
    ----------
    builder : BlockBuilder
        Of the module with the kernels that are made.
    """

    def __init__(self, mod: tvm.IRModule):
        self.builder = relax.BlockBuilder(mod)
        self._mod = mod
        self._made: dict[Any, tirx.PrimFunc] = {}
        self._variables: dict[tvm_ffi.StructuralKey, Any] = {}
        self._replaced: dict[Any, None] = {}

    @property
    def are_used(self) -> bool:
        """Whether a kernel has replaced others."""
        return bool(self._replaced)

    def __getitem__(self, variable: Any) -> Any:
        """The function of a variable: the module's, or a kernel that was made."""
        # Not the builder's: it makes a module for each question.
        return self._made[variable] if variable in self._made else self._mod[variable]

    def add(self, kernel: tirx.PrimFunc, *replaced: Any) -> Any:
        """The variable of a kernel that replaces others in calls; a new one has their names."""
        self._replaced.update(dict.fromkeys(replaced))
        key = tvm_ffi.StructuralKey(kernel)
        if key not in self._variables:
            hint = "_".join(str(origin.name_hint) for origin in replaced)
            self._variables[key] = self.builder.add_func(kernel, hint)
            self._made[self._variables[key]] = kernel
        return self._variables[key]

    def in_blocks(self, change: Callable[[list[Any]], list[Any]]) -> tvm.IRModule:
        """The module with the bindings of each dataflow block changed; see `finished`."""
        return self.finished(map_dataflow_blocks(self._mod, change, self.builder))

    def finished(self, changed: tvm.IRModule) -> tvm.IRModule:
        """A changed module without replaced kernels that nothing calls any more.

        If none was replaced, it is the module that was given.
        """
        return drop_unused_kernels(changed, self._replaced) if self.are_used else self._mod


def fuse_epilogue(producer: Part, output: int, consumer: Part, position: int) -> Part | None:
    """The kernel that computes a reduction and, from each of its results, a map.

    Parameters
    ----------
    producer : Part
    output : int
        Which of its results the consumer reads; nothing else does.
    consumer : Part
        A kernel of one result.
    position : int
        Which argument of the consumer that result is.

    Returns
    -------
    Part or None
        The consumer's result takes the place of the one that it reads, of which no more than a tile
        exists at a time; None where that cannot be.
    """
    first, second = producer.kernel, _one_map(consumer.kernel)
    producer_stages = stages(first)
    if second is None or producer_stages is None:
        return None
    params = list(first.params[: len(producer.arguments)])
    results = list(first.params[len(producer.arguments) :])
    second = _bind_extents(second, second.params[position], results[output])
    arguments = list(producer.arguments)
    handed_over = tirx.decl_buffer(results[output].shape, results[output].dtype, "gradient")
    replaced_buffers = {results[output]: handed_over, second.params[position]: handed_over}
    results[output] = second.params[-1]
    for i, argument in enumerate(consumer.arguments):
        shared_params = [p for p, a in zip(params, arguments, strict=True) if a.same_as(argument)]
        if i == position:
            continue
        if shared_params:  # no two parameters may be one buffer
            replaced_buffers[second.params[i]] = shared_params[0]
        else:
            params.append(second.params[i])
            arguments.append(argument)
    map_nest = rename_blocks(second.body.block.body, {stage.name for stage in producer_stages})
    root = first.body.block
    internal = [*root.alloc_buffers, handed_over]
    body = substitute_values(
        block("root", *statements_of(root.body), map_nest, buffers=internal), replaced_buffers
    )
    kernel = tirx.PrimFunc([*params, *results], body, attrs=first.attrs)
    # Whether a schedule will take the map as an epilogue shows only in the whole kernel.
    return Part(kernel, arguments) if _hands_over(kernel, handed_over) else None


def _bind_extents(kernel: tirx.PrimFunc, consumed: Any, produced: Any) -> tirx.PrimFunc:
    """A kernel in which the extents of a parameter, `consumed`, are named as in `produced`.

    A symbolic extent gets its value from a parameter's shape at a call. This parameter becomes an
    internal buffer, so its extents must be those that other parameters give.
    """
    pairs = zip(consumed.shape, produced.shape, strict=True)
    produced_extents = {
        extent: produced_extent
        for extent, produced_extent in pairs
        if isinstance(extent, tvm.ir.Var)
    }
    return substitute_values(kernel, produced_extents)


def _one_map(kernel: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """A kernel of maps as one map; None if it has other stages, or they cannot be inlined."""
    kernel_stages = stages(kernel)
    if kernel_stages is None or any(stage.reduced for stage in kernel_stages):
        return None
    sch = schedule_of(kernel)
    inlined_stages = inline_maps(sch, lambda *_: True)
    # One kernel may be merged with several: each time its variables are others.
    return renew_defs(kernel.with_body(sch.mod["main"].body)) if len(inlined_stages) == 1 else None


def _hands_over(kernel: tirx.PrimFunc, buffer: Any) -> bool:
    """Whether a buffer lies between a reduction and its epilogue, or between two maps.

    Then a schedule need not hold all of it: elements go from the one to the other.
    """
    kernel_stages = stages(kernel) or []
    internal = list(kernel.body.block.alloc_buffers)
    (stage,) = [s for s in kernel_stages if any(store.buffer.same_as(buffer) for store in s.stores)]
    epilogues = epilogues_of(stage, kernel_stages, internal)
    return not stage.reduced or any(epilogue.taken.same_as(buffer) for epilogue in epilogues)
