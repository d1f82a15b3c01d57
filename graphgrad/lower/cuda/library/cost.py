"""The times of a contraction on a GPU, estimated: by a library's plan, and by a kernel of ours."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....ir.loops import ceil_div
from ....runtime.cudnn.plans import Plan
from ....runtime.cudnn.problem import CONVOLUTIONS, MATMUL, Problem
from ..tensor_cores.device import HALVES, TF32
from ..tensor_cores.tile import Extents

_TENSOR_CORE = "TENSOR_CORE"


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, as far as estimates need it.

    Attributes
    ----------
    bytes : float
        Read and written.
    half, tf32, single : float
        Additions and multiplications: on tensor cores in 16 bits and in TF32, and in float32.
    launch : float
        Seconds that the shortest kernel takes.
    by_warps : float
        The share of `half` and `tf32` that kernels of ours reach at most, whose warps multiply by
        `mma.sync`: on Hopper 63 % of the peak that its `wgmma` reaches (Luo et al. 2024,
        arXiv:2402.13499), which is 989 TFLOP/s in 16 bits.
    """

    bytes: float
    half: float
    tf32: float
    single: float
    launch: float = 2e-6
    by_warps: float = 1.0

    def of(self, number: str) -> float:
        """Operations in a second on tensor cores, of what these read as a number."""
        return self.tf32 if number == TF32 else self.half


RATES = {
    90: Rates(bytes=4.3e12, half=790e12, tf32=395e12, single=60e12, by_warps=0.63 * 989 / 790),
    80: Rates(bytes=1.8e12, half=250e12, tf32=125e12, single=18e12),
}
"""By the compute capability: an H200 as measured, and an A100 at 80 % of its data sheet."""

_OWN_SHARE = 0.25
"""The share of the rate of float32 that our contractions reach: an assumption, not measured."""

_OWN_BYTES_SHARE = 0.6
"""That of the speed of memory: an assumption. A library keeps more loads under way."""

_LIBRARY_SHARE = 0.6
"""The share of the rates that a library reaches in convolutions and products of networks."""


def seconds_by_library(plan: Plan, share: float = _LIBRARY_SHARE) -> float:
    """The time of a problem by a plan that reaches a share of the rate of the units it uses."""
    rates = RATES[plan.architecture]
    computed = plan.problem.operations / (_rate_of(plan) * share)
    return max(bytes_moved(plan) / rates.bytes, computed, rates.launch)


def bytes_moved(plan: Plan) -> int:
    """What a plan reads and writes: each tensor once, and its workspace twice."""
    return plan.problem.bytes + 2 * plan.workspace


def _rate_of(plan: Plan) -> float:
    """Operations in a second of the units that compute a plan."""
    rates = RATES[plan.architecture]
    on_tensor_cores = _TENSOR_CORE in plan.notes
    return rates.of(_number_of(plan.problem)) if on_tensor_cores else rates.single


def _number_of(problem: Problem) -> str:
    """What tensor cores read the operands of a problem as."""
    dtype = problem.inputs[0].dtype
    return TF32 if dtype == "float32" else dtype


def seconds_by_own(problem: Problem, architecture: int) -> float:
    """The time of a problem by a kernel of ours, on tensor cores where these take it.

    None was ever timed; libraries' kernels are known to be good.
    """
    rates = RATES[architecture]
    extents, number = _extents(problem), _number_of(problem)
    if extents.fits and (number in HALVES or problem.tf32):
        computed = extents.seconds(number, rates.of(number) * rates.by_warps)
    else:
        computed = problem.operations / (rates.single * _OWN_SHARE)
    return max(problem.bytes / (rates.bytes * _OWN_BYTES_SHARE), computed, rates.launch)


def _extents(problem: Problem) -> Extents:
    """Those of a contraction: of one whose groups have channels of their own, of each group."""
    if problem.op == MATMUL:
        stacks, rows, columns = problem.output.shape
        return Extents(stacks, rows, columns, problem.inputs[0].shape[-1])
    filters, channels, *window = problem.weights.shape
    batch, every, *_ = problem.data.shape
    groups = every // channels
    results, inputs = (batch * prod(form.shape[2:]) for form in (problem.result, problem.data))
    own, taps = filters // groups, prod(window)
    if problem.op == "conv_forward":
        return Extents(groups, results, own, channels * taps)
    if problem.op == "conv_data_gradient":
        # Of a stride, each place of the data is in the windows that meet it alone.
        return Extents(groups, inputs, channels, ceil_div(own * taps, prod(problem.strides)))
    return Extents(groups, own, channels * taps, results)


def epilogue_pays(plan: Plan, alone: Plan) -> bool:
    """Whether a contraction is to be computed with its epilogue, rather than alone.

    Alone, it writes its result, and a kernel of ours reads that, and what the epilogue reads, and
    writes what that writes.
    """
    rates = RATES[plan.architecture]
    problem, contraction = plan.problem, alone.problem
    others = problem.bytes - sum(form.bytes for form in contraction.inputs)
    apart = max((contraction.output.bytes + others) / rates.bytes, rates.launch)
    return seconds_by_library(plan) < seconds_by_library(alone) + apart


def library_pays(plan: Plan) -> bool:
    """Whether the library is to compute a problem.

    Depthwise convolutions are a matter of memory, in which a kernel of ours takes part in the
    fusion of what is around it, as it does in contractions that are as short as a launch.
    """
    problem = plan.problem
    if problem.op in CONVOLUTIONS and problem.weights.shape[1] == 1:
        return False
    return seconds_by_library(plan) < seconds_by_own(problem, plan.architecture)
