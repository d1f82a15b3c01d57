"""Sums that read each element once, told to stock fusion as reductions.

TVM takes a sum for a contraction wherever its terms are products, and puts no map into a kernel in
front of one: a contraction reads its operands many times. A dot product, as in the gradient of a
scale, or a negated sum, as in that of a difference, reads each element once.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from ...ir.kernel_calls import OPAQUE_PATTERN, REDUCTION_PATTERN
from ...ir.kernel_structure import Stage, buffer_of, stages, static, uses, volume
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_kernels

CONTRACTION_PATTERN = 4
"""TVM's kind of a contraction (`OpPatternKind`)."""


@compiler_pass(
    Phase.KERNELS,
    requires={"AnnotateTIROpPattern": "it corrects what TVM has noted"},
    before={"recompute_maps": "it copies maps in front of reductions, of contractions not"},
)
def annotate_reductions(mod: tvm.IRModule) -> tvm.IRModule:
    """Note of kernels that sum, and read no element twice, that they are reductions."""
    return map_kernels(mod, lambda _, func: _annotated(func))


def _annotated(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if int((func.attrs or {}).get("op_pattern", OPAQUE_PATTERN)) != CONTRACTION_PATTERN:
        return func
    sums = [stage for stage in stages(func) or [] if stage.reduced]
    if not sums or not all(map(_reads_each_element_once, sums)):
        return func
    return func.with_attr("op_pattern", REDUCTION_PATTERN)


def _reads_each_element_once(stage: Stage) -> bool:
    """Whether all reads run along all axes, and none goes through windows that overlap."""
    return all(
        all(axis.extent == 1 or uses(read, axis.var) for axis in stage.axes)
        and _elements(buffer_of(read)) >= volume(stage.axes)
        for read in stage.loads
    )


def _elements(buffer: Any) -> int:
    """The elements of a buffer; none if their number is symbolic."""
    return math.prod(static(extent) or 0 for extent in buffer.shape)
