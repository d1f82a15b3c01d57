"""The vector registers of a processor."""

from __future__ import annotations

from dataclasses import dataclass

import tvm


@dataclass(frozen=True)
class VectorUnit:
    """The width and number of a processor's vector registers, from which schedules take tile sizes.

    Attributes
    ----------
    bytes : int
        Width of a vector register.
    registers : int
        Number of vector registers.
    """

    bytes: int
    registers: int

    def lanes(self, dtype: str) -> int:
        """How many elements of `dtype` a register holds, at the width that they are computed in.

        Half-precision floats are widened to 32 bits by the code generator.
        """
        bits = max(int(tvm.DataType(dtype).bits), 8)
        if dtype in ("float16", "bfloat16"):
            bits = 32
        return max(self.bytes * 8 // bits, 1)


def vector_unit(resolved: tvm.target.Target) -> VectorUnit:
    """The vector unit of an llvm target, by the features of its processor."""
    has = tvm.get_global_func("target.target_has_feature")
    if has("avx512f", resolved):
        return VectorUnit(bytes=64, registers=32)
    if has("avx2", resolved):
        return VectorUnit(bytes=32, registers=16)
    # 128 bits: NEON has 32 registers, SSE 16, which is also assumed of unknown processors.
    return VectorUnit(bytes=16, registers=32 if has("neon", resolved) else 16)
