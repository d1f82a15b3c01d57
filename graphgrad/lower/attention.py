"""Which attention a target computes without a matrix of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm

from .cpu.attention.calls import problem_of
from .cpu.tuning import processor_of
from .cuda.library.attention import serves_attention


def attention_kernels(
    target: tvm.target.Target, libraries: bool = False
) -> Callable[[list[Any], float, str], bool]:
    """Whether an attention of operands of given types, a scale and a causal order has a kernel.

    On a GPU a library has, where `libraries` may be called. See
    `graphgrad.ops.attention_pattern.fuse_attention`.
    """
    if str(target.kind.name) != "llvm":
        return serves_attention(target) if libraries else lambda types, scale, causal: False
    processor = processor_of(target)

    def serves(types: list[Any], scale: float, causal: str) -> bool:
        return problem_of(types, scale, causal, processor) is not None

    return serves
