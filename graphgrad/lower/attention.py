"""Which attention a target computes without a matrix of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

from .cpu.attention.calls import problem_of
from .cpu.tuning import processor_of
from .cuda.library.attention import serves_attention


def attention_kernels(
    target: tvm.target.Target, libraries: bool = False, saves_memory: bool = False
) -> Callable[[list[Any], float, str], bool]:
    """Whether an attention of operands of given types, a scale and a causal order is fused.

    See `graphgrad.ops.attention_pattern.fuse_attention`.

    Parameters
    ----------
    target : Target
    libraries : bool
        Whether those of a GPU may be called, which alone have kernels there.
    saves_memory : bool
        Whether a processor computes all that a kernel serves so, and not only what takes less time.
    """
    if str(target.kind.name) != "llvm":
        return serves_attention(target) if libraries else lambda types, scale, causal: False
    processor = processor_of(target)

    def serves(types: list[Any], scale: float, causal: str) -> bool:
        problem = problem_of(types, scale, causal, processor)
        if problem is None:
            return False
        return saves_memory or problem.queries * problem.keys > processor.most_plain_scores

    return serves
