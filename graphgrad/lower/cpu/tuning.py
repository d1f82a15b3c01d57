"""What schedules know of a processor: its vector registers, and what was measured on its family.

A constant that depends on the processor stands here, by whom it is used; schedules have none of
their own. Each family is measured on one machine of it, and a kernel is the same wherever it is
compiled for the same target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm

from .features import uses_tiles


@dataclass(frozen=True)
class ContractionCosts:
    """Costs and limits of contractions; the defaults are of Zen 4.

    Cycles are those of one multiply-add of a register. They rank tiles, and predict no seconds.

    Attributes
    ----------
    near_bytes : int
        Bytes of data that are to stay in a core's second-level cache.
    part_bytes : int
        The same of a block of a part of a sum, all tiles of which read both factors again.
    element_load_cycles, vector_load_cycles : float
        Cycles that a load costs in spite of the multiply-adds that hide it.
    step_cycles : float
        Cycles of each step of the innermost loop for the loop itself.
    narrow_cycles : float
        Cycles of an operation on part of a register: many processors do two such in one cycle.
    ragged_overhead : float
        Share of the time that a ragged row axis costs, besides the rows computed in vain.
    max_partial_bytes : int
        Bytes of results at most of which each part of a split sum has its own.
    min_terms_per_part : int
        Terms that a part of a sum must have, so that the time to add up the parts is negligible.
    min_panel_reuse : int
        Results that must read each element of a panel for its copy to be worth the time, where it
        could be read in place but its rows compete for the same sets of the cache. It is higher
        than that of other copies because what one core has copied, another has to fetch.
    prefetch_steps : int
        Steps of a sum that take as long as a line takes to come from memory.
    min_copy_reuse : int
        Results that must read each element of the other factor for its copy to be worth the time.
    far_step_bytes : int
        Bytes between the reads of neighboring steps of a sum, from which on steps touch so many
        pages that the other factor is better copied.
    crowded_rows, crowded_row_bytes : int
        Rows at a distance of so many bytes, or more, share sets of the first-level cache, which
        holds so many of them.
    crowded_overhead : float
        Share of the time that it costs to read more of such rows.
    element_store_cycles, element_copy_cycles : float
        Cycles to store one element of a tile that cannot be stored in vectors, and to copy one into
        a panel from vectors that are not contiguous.
    """

    near_bytes: int = 5 << 17
    part_bytes: int = 5 << 17
    element_load_cycles: float = 0.1
    vector_load_cycles: float = 0.35
    step_cycles: float = 1.0
    narrow_cycles: float = 0.7
    ragged_overhead: float = 0.06
    max_partial_bytes: int = 5 << 17
    min_terms_per_part: int = 256
    min_panel_reuse: int = 1100
    prefetch_steps: int = 32
    min_copy_reuse: int = 128
    far_step_bytes: int = 1024
    crowded_rows: int = 8
    crowded_row_bytes: int = 2048
    crowded_overhead: float = 0.15
    element_store_cycles: float = 2.0
    element_copy_cycles: float = 2.0


@dataclass(frozen=True)
class WinogradCosts:
    """Costs and limits of minimal filtering; the defaults are of Zen 4 (L2 of 1 MB, L3 of 32 MB).

    Costs are counted in vector multiply-adds of one core. They were fitted to 30 layers, of 16 to
    512 channels and 2 to 224 rows.

    Attributes
    ----------
    vector_move_cost : int
        The cost of computing and storing, or of loading, a vector of factors or of products.
    tap_move_cost : int
        The same for the factors of weights.
    sum_move_cost : int
        The same for the products of a weight gradient, which are stored as sums over all tiles.
    shared_bytes : int
        Bytes of the weights' factors up to which they are all computed first: half of the cache
        that cores share.
    image_block_bytes : int
        Bytes of factors and products of a block of images: half of a core's second-level cache.
    streamed_block_bytes : int
        The same where the weights' factors do not fit that cache: each block reads them once more
        from the shared one, and the larger a block is, the fewer there are.
    reread_share : float
        Share of such weights' factors up to which those of the data are rather read once more for
        each panel of weights.
    gradient_block_bytes : int
        Bytes of factors of a block of images for a weight gradient: a part of the shared cache.
    max_whole_bytes : int
        Bytes of the factors of all tiles up to which a weight gradient computes them all first.
    depth_channels : int
        Channels, or rows of weights, at a time, whose factors and products stay in a core's cache.
    """

    vector_move_cost: int = 15
    tap_move_cost: int = 5
    sum_move_cost: int = 10
    shared_bytes: int = 16 << 20
    image_block_bytes: int = 1 << 19
    streamed_block_bytes: int = 1 << 19
    reread_share: float = 0.0
    gradient_block_bytes: int = 4 << 20
    max_whole_bytes: int = 20 << 20
    depth_channels: int = 64


@dataclass(frozen=True)
class Processor:
    """A processor, from which schedules take tile sizes, costs and limits.

    Attributes
    ----------
    vector_bytes : int
        Width of a vector register.
    registers : int
        Number of vector registers.
    multiplies_pairs : bool
        Whether it adds products of pairs of bfloat16 to float32 in one instruction.
    multiplies_matrices : bool
        Whether it also adds products of matrices of such pairs, in registers of their own (AMX),
        and is to: only where the target says so, because the system must be asked for them.
    row_bytes : int
        Bytes of rows, of all tensors together, that stay in a core's own cache from one walk
        through them to the next. A longer row is cut where it can be.
    step_bytes : int
        Bytes up to which each core may read, in each step of a loop over time, what is the same for
        all lanes: a part of its own cache. More is read better once for all lanes.
    line_bytes : int
        Bytes of a cache line.
    sum_vectors : int
        Vectors of partial sums side by side that hide the latency of an addition.
    is_gpu : bool
        Whether a block of threads has the place of a core. Chains of rows (`rowwise`) are found for
        both: a block has rows of its own, so that none are added up in a chain, and its threads
        need no axes taken apart.
    by_lane : bool
        Whether a multiply-add takes one lane of a register as a factor of all its own. Contractions
        then load neighboring terms of what is broadcast as one vector.
    most_plain_scores : int
        Scores of a head beyond which attention is computed in blocks. So few are in a core's cache
        whole, and to keep the weights takes less time than to compute them again: at 128 × 128 the
        step of a transformer encoder takes 0.98.
    contraction : ContractionCosts
    winograd : WinogradCosts
    """

    vector_bytes: int
    registers: int
    multiplies_pairs: bool = False
    multiplies_matrices: bool = False
    row_bytes: int = 1 << 19
    step_bytes: int = 1 << 17
    line_bytes: int = 64
    sum_vectors: int = 4
    is_gpu: bool = False
    by_lane: bool = False
    most_plain_scores: int = 1 << 14
    contraction: ContractionCosts = ContractionCosts()
    winograd: WinogradCosts = WinogradCosts()

    def lanes(self, dtype: str) -> int:
        """How many elements of `dtype` a register holds, at the width that they are computed in.

        Half-precision floats are widened to 32 bits by the code generator.
        """
        bits = max(int(tvm.DataType(dtype).bits), 8)
        if dtype in ("float16", "bfloat16"):
            bits = 32
        return max(self.vector_bytes * 8 // bits, 1)


ZEN4 = Processor(vector_bytes=64, registers=32, multiplies_pairs=True)
"""AVX-512 in two passes: a multiply-add and a load of 512 bits in a cycle. Measured on an EPYC of
the fourth generation, on which the defaults are measured."""

AVX512 = Processor(
    vector_bytes=64,
    registers=32,
    contraction=ContractionCosts(
        near_bytes=1 << 20,
        part_bytes=1 << 20,
        # Both ports are as wide as a register, so half of one takes as long.
        narrow_cycles=1.0,
        min_terms_per_part=512,
        min_panel_reuse=48,
        prefetch_steps=64,
    ),
    winograd=WinogradCosts(tap_move_cost=15),
)
"""AVX-512 of full width: two multiply-adds of 512 bits in a cycle, an L2 of 2 MB. Measured on a
Xeon of the fifth generation, minimal filtering on an EPYC of the fifth; serves all of AVX-512 that
are not known to be otherwise."""

ZEN5 = replace(
    AVX512,
    contraction=replace(AVX512.contraction, near_bytes=5 << 17, part_bytes=3 << 16),
    winograd=replace(
        AVX512.winograd,
        shared_bytes=12 << 20,
        streamed_block_bytes=5 << 17,
        reread_share=0.25,
        depth_channels=128,
    ),
)
"""AVX-512 of full width and an L2 of 1 MB. Measured on an EPYC of the fifth generation."""

AVX2 = Processor(
    vector_bytes=32,
    registers=16,
    contraction=ContractionCosts(
        # Two multiply-adds in a cycle, of a latency of four: a tile of eight registers waits.
        step_cycles=3.0,
        ragged_overhead=0.0,
        narrow_cycles=1.0,
        min_panel_reuse=48,
        prefetch_steps=64,
    ),
)
"""256 bits: two multiply-adds in a cycle. Measured on the same Xeon with code for a Haswell."""

NEON = Processor(
    vector_bytes=16,
    registers=32,
    by_lane=True,
    contraction=ContractionCosts(
        # Counted in instructions: a loop is five, and one loads two vectors of a panel.
        step_cycles=5.0,
        vector_load_cycles=0.5,
        element_load_cycles=0.5,
        ragged_overhead=0.0,
        narrow_cycles=1.0,
        # As of all processors that are measured but Zen 4.
        min_panel_reuse=48,
    ),
)
"""128 bits, 32 registers. Not measured: `bench/inner_loops.py` counts what code is made of."""

SSE = Processor(vector_bytes=16, registers=16)
"""128 bits, 16 registers, which is also assumed of unknown processors."""

_AVX512_FAMILIES = {"znver4": ZEN4, "znver5": ZEN5}
"""Families with AVX-512 by the names that LLVM has for their processors."""


def processor_of(resolved: tvm.target.Target) -> Processor:
    """The processor of an llvm target, by its name and its features."""
    has = tvm.get_global_func("target.target_has_feature")
    if has("avx512f", resolved):
        family = _AVX512_FAMILIES.get(str(resolved.attrs.get("mcpu", "")), AVX512)
        pairs = bool(has("avx512bf16", resolved))
        matrices = pairs and uses_tiles(resolved)
        return replace(family, multiplies_pairs=pairs, multiplies_matrices=matrices)
    if has("avx2", resolved):
        return AVX2
    return NEON if has("neon", resolved) else SSE
