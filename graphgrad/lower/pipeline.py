"""From Relax to an executable: the order of passes, and what is checked on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import tvm

from ..errors import TargetError
from ..ir.calls import drop_te_gradients
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.exact_divisions import write_exact_divisions
from ..ir.passes import TARGETS, Entry, Pipeline, When
from ..memory.allocation import allocate_first
from ..memory.argument_checks import check_arguments_once
from ..memory.budget import FunctionBudget
from ..memory.donation import donate
from ..memory.effect_order import pin_effects
from ..memory.escape import allocate_escaping
from ..memory.heap import give_back
from ..memory.no_alias import keep_noalias, unify_noalias
from ..memory.overlap import Overlap, check_overlap_choice, check_overlaps, copy_overlaps
from ..memory.ownership import keep_copies, own_constants, own_views
from ..memory.planning import plan_memory
from ..memory.result_checks import check_results
from ..runtime.threads import prepare as prepare_threads
from . import stock
from .codegen.cache import compiled_once
from .codegen.early import EarlyBuilds, build_early
from .codegen.library import LinkedExecutable
from .codegen.parallel import compile_kernels
from .cpu import schedule as cpu
from .cpu.attention.calls import compute_attention_in_blocks
from .cpu.functions import lower_functions
from .cpu.guarded_reads import guard_reads
from .cpu.joint_nests import join_nests
from .cpu.nan import vectorize_nan_tests
from .cpu.small_tanh import expand_small_tanh
from .cpu.stack import keep_on_stack
from .cpu.tuning import Processor, processor_of
from .cpu.vector_math import vectorize_math
from .cpu.wide_factors import widen_factors
from .cuda import lowering as cuda_lowering
from .cuda import schedule as cuda
from .cuda import stages as cuda_stages
from .cuda.block_rows import BLOCK_ROWS
from .cuda.compiler import arch_of, compiling_for, executable_sources, machine_code
from .cuda.early_casts import cast_early
from .cuda.library.attention import call_attention_library
from .cuda.library.select import absence as library_absence
from .cuda.library.select import call_libraries
from .cuda.library.transpositions import move_transpositions
from .cuda.max_pool import find_maxima
from .cuda.row_chains import GPU
from .cuda.small_maps import attach_small_maps
from .cuda.sorting import sort_on_device
from .device import request_registers
from .fusion import (
    annotate_reductions,
    decide_fusion,
    drop_unread_results,
    fuse_maps,
    fuse_rowwise,
    fuse_siblings,
    name_inner_tuples,
    recompute_maps,
    replace_tuples,
    share_results,
)
from .fusion.accumulate import accumulate_early, fuse_accumulation
from .fusion.horizontal import fuse_horizontally, mark_flat_maps
from .fusion.horizontal.kernel import RowsWriter
from .fusion.horizontal.table_rows import TABLE_ROWS
from .graph.direct_calls import resolve_closures
from .graph.legalize import legalize_ops
from .graph.permuted_products import fold_permutations
from .graph.row_blocks import compute_in_row_blocks, part_row_blocks
from .graph.static_kernels import specialize_kernels
from .graph.unlowered import refuse_host_ops, refuse_unlowered
from .kernels.inline_maps import MayRepeat
from .kernels.joint_reductions import PROCESSOR_LIMITS, BlockLimits
from .kernels.wide_bfloat16 import widen_arithmetic
from .kernels.zero_based_loops import start_loops_at_zero
from .target import is_generic, parse
from .target import target as resolve

PASSES: list[Entry] = [
    sort_on_device,
    drop_te_gradients,
    specialize_kernels,
    compute_attention_in_blocks,
    compute_in_row_blocks,
    fold_permutations,
    find_maxima,
    When("libraries", [call_attention_library, move_transpositions, call_libraries]),
    accumulate_early,
    name_inner_tuples,
    decide_fusion,
    own_constants,
    stock.LAMBDA_LIFT,
    resolve_closures,
    pin_effects,
    legalize_ops,
    own_constants,
    When(
        "fuses",
        [
            replace_tuples,
            share_results,
            stock.ANNOTATE_PATTERNS,
            annotate_reductions,
            recompute_maps,
            part_row_blocks,
            stock.FUSE_OPS,
            stock.FUSE_KERNELS,
        ],
    ),
    own_views,
    drop_unread_results,
    fuse_siblings,
    attach_small_maps,
    fuse_rowwise,
    fuse_maps,
    fuse_accumulation,
    When("copies_overlaps", [copy_overlaps]),
    cast_early,
    mark_flat_maps,
    widen_factors,
    cpu.schedule_loops,
    cuda.schedule_threads,
    start_loops_at_zero,
    write_exact_divisions,
    guard_reads,
    widen_arithmetic,
    vectorize_nan_tests,
    lower_functions,
    keep_on_stack,
    join_nests,
    build_early,
    unify_noalias,
    donate,
    fuse_horizontally,
    vectorize_math,
    expand_small_tanh,
    keep_copies,
    stock.VIEW_RESHAPES,
    stock.LEAVE_DATAFLOW,
    stock.PASS_OUTPUTS,
    check_overlaps,
    check_arguments_once,
    check_results,
    allocate_escaping,
    stock.DROP_PURITY,
    plan_memory,
    stock.LOWER_ALLOCATIONS,
    allocate_first,
    stock.RELEASE,
    stock.LOWER_BUILTINS,
    stock.COMPUTE_NUMBERS,
    stock.LOWER_SHAPES,
    stock.NAME_SYMBOLS,
    keep_noalias,
    refuse_unlowered,
    refuse_host_ops,
]
"""The passes that turn a program into instructions of the virtual machine, in order.

The list is for all targets. Each pass declares which targets it is for, and why it is at its
position: ``python -m graphgrad.lower`` prints that.
"""


@dataclass(frozen=True)
class Lowering:
    """The arguments of passes: a pass gets the attributes that its parameters are named after.

    Attributes
    ----------
    target, kernels, winograd, overlap, early, budget, libraries, tf32
        As in `lower`.
    binds : bool
        Whether schedules may bind variables in expressions (`schedule_loops`): not where TVM's own
        lowering of kernels follows.
    scheduled : dict
        Kernels that are scheduled already; the pass `schedule_loops` fills it, as schedules fill
        `kernels`.
    """

    target: tvm.target.Target
    kernels: list[cuda.Kernel] | None = None
    winograd: bool = True
    overlap: Overlap = "refuse"
    early: EarlyBuilds | None = None
    budget: FunctionBudget | None = None
    libraries: bool = True
    tf32: bool = False
    binds: bool = True
    scheduled: cpu.Scheduled = field(default_factory=dict)

    @property
    def copies_overlaps(self) -> bool:
        """Whether arguments are copied that share memory with one that is overwritten."""
        return self.overlap == "copy"

    @property
    def may_repeat(self) -> MayRepeat:
        """Which maps a schedule will inline."""
        is_llvm = str(self.target.kind.name) == "llvm"
        return cpu.may_repeat if is_llvm else cuda_stages.may_repeat

    @property
    def block_limits(self) -> BlockLimits:
        """Which reductions share a block."""
        is_cuda = str(self.target.kind.name) == "cuda"
        return cuda_stages.BLOCK_LIMITS if is_cuda else PROCESSOR_LIMITS

    @property
    def rows_writer(self) -> RowsWriter:
        """How equal maps of many tensors are computed in one kernel."""
        return TABLE_ROWS if str(self.target.kind.name) == "llvm" else BLOCK_ROWS

    @cached_property
    def processor(self) -> Processor:
        """The vector registers of the target's processor; of a GPU those of a thread."""
        return GPU if str(self.target.kind.name) == "cuda" else processor_of(self.target)


PIPELINES = {kind: Pipeline(PASSES, kind, Lowering) for kind in TARGETS}
"""The passes for each kind of target."""

TargetLike: TypeAlias = str | Mapping[str, Any] | tvm.target.Target


def compile(
    mod: tvm.IRModule,
    target: TargetLike = "llvm",
    *,
    winograd: bool = True,
    overlap: Overlap = "refuse",
    budget: FunctionBudget | None = None,
    libraries: bool = True,
    tf32: bool = False,
) -> Any:
    """An executable for the Relax virtual machine.

    For CUDA, in a process without a GPU, it holds the source of the kernels too. A library exported
    from it is compiled again where it is loaded, by TVM's own call of a compiler, with fast
    mathematics: to run a step elsewhere use `TrainStep.export`, which saves machine code.

    Parameters
    ----------
    mod : IRModule
        Relax functions, and PrimFuncs that they call. It is not changed. Packed functions that they
        call by a name of yours get, for CUDA, tensors on the device.
    target : str, dict or Target
        See `graphgrad.target`: a bare ``"llvm"`` is this host.
    winograd : bool
        For processors: whether convolutions of float32 with windows of 3 by 3 may be computed by
        minimal filtering where that is faster. Its rounding errors are others, of the same size;
        and an element that is not finite spoils results up to 5 rows and columns away.
    overlap : "refuse" or "copy"
        What becomes of a call in which an argument that is overwritten, such as an accumulator,
        shares memory with another argument: it raises `AliasError`, or the argument is copied, so
        that the result is in new memory. What is not shared is overwritten in place either way.
    budget : FunctionBudget, optional
        For the memory of a function, as ``memory=`` of `train_step` makes it.
    libraries : bool
        For CUDA: whether cuDNN computes convolutions and matrix products where it is installed and
        that is estimated to be faster than a kernel of ours.
    tf32 : bool
        For CUDA: whether cuDNN may round operands of float32 to 10 bits of mantissa.

    Returns
    -------
    tvm.runtime.Executable
        To be run by ``relax.VirtualMachine``.

    Raises
    ------
    TargetError
        The target is unknown or not served.
    DeviceError
        The target has +amx-bf16, this processor too, and the system does not give its registers.
    LoweringError
        For CUDA: some kernels fit no schedule, some ops run on the host alone, or there is no
        compiler of CUDA source.
    ArgumentError
        An attribute that asks for donation is malformed, `overlap` is another word, or a budget
        cannot be met.
    GraphGradError
        An op has no lowering; all such ops are listed.
    """
    executable, _ = compile_finished(
        mod, resolve(target), None, winograd, overlap, budget, libraries, tf32
    )
    return executable


def compile_finished(
    mod: tvm.IRModule,
    resolved: tvm.target.Target,
    finish: Callable[[tvm.IRModule], tuple[tvm.IRModule, Any]] | None = None,
    winograd: bool = True,
    overlap: Overlap = "refuse",
    budget: FunctionBudget | None = None,
    libraries: bool = True,
    tf32: bool = False,
) -> tuple[Any, Any]:
    """As `compile`, for a resolved target, with a last change of what is lowered.

    Parameters
    ----------
    mod, winograd, overlap, budget, libraries, tf32
        As of `compile`.
    resolved : Target
    finish : callable, optional
        For CUDA, whose programs are not cached: given the lowered module, returns it changed, and
        facts about it.

    Returns
    -------
    executable : Executable
    facts : object
        None where nothing finishes.
    """
    assert finish is None or str(resolved.kind.name) == "cuda"
    request_registers(resolved)
    overlap = check_overlap_choice(overlap)

    def make(program: tvm.IRModule) -> tuple[Any, Any]:
        with EarlyBuilds(resolved) as early:
            lowered = lower(
                program, resolved, None, winograd, overlap, early, budget, libraries, tf32
            )
            lowered, facts = (lowered, None) if finish is None else finish(lowered)
            return generate(lowered, resolved, early), facts

    options = {
        "winograd": winograd,
        "overlap": overlap,
        "budget": budget and budget.settings,
        # What is missing here, or switched off, may be there next time.
        "libraries": libraries and library_absence(resolved) is None,
        "tf32": tf32,
    }
    executable, facts = compiled_once(mod, resolved, options, make)
    if str(resolved.kind.name) == "llvm":
        prepare_threads()  # the thread that compiles is likely to be the one that runs the program
    check_sources(executable, resolved)
    give_back()
    return executable, facts


def check_sources(executable: Any, target: tvm.target.Target) -> None:
    """Compile the CUDA source that is in an executable, so that its errors are raised here.

    Where no CUDA runtime is loaded, TVM keeps the source alone. An export finds the machine code in
    a cache.

    Raises
    ------
    LoweringError
    """
    for source in executable_sources(executable):
        machine_code(source, arch_of(target))


def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    kernels: list[cuda.Kernel] | None = None,
    winograd: bool = True,
    overlap: Overlap = "refuse",
    early: EarlyBuilds | None = None,
    budget: FunctionBudget | None = None,
    libraries: bool = True,
    tf32: bool = False,
) -> tvm.IRModule:
    """A module of scheduled kernels and instructions of the Relax virtual machine.

    Parameters
    ----------
    mod : IRModule
    target : Target
        A target that is resolved, as `graphgrad.target` does it.
    kernels : list, optional
        Receives, for CUDA, a record of how each kernel was scheduled.
    winograd, overlap
        As in `compile`.
    early : EarlyBuilds, optional
        Builds large kernels while others are lowered; to be handed to `generate` then.
    budget : FunctionBudget, optional
        For the memory of a function of the module; receives the plan.
    libraries, tf32
        As in `compile`.

    Raises
    ------
    TargetError, LoweringError, ArgumentError, GraphGradError
        As `compile`.
    """
    options = {"kernels": kernels, "winograd": winograd, "overlap": overlap, "early": early}
    options |= {"libraries": libraries, "tf32": tf32}
    return _lowering(target, **options, budget=budget)(mod)


def generate(mod: tvm.IRModule, target: tvm.target.Target, early: EarlyBuilds | None = None) -> Any:
    """The executable of a module that `lower` has made for the same target.

    Raises
    ------
    LoweringError
        For CUDA: some kernels would run on the host.
    """
    if str(target.kind.name) != "cuda":
        return compile_kernels(mod, target, early.taken if early is not None else None)
    no_passes = tvm.transform.Sequential([])
    with compiling_for(target):
        return LinkedExecutable.of(
            tvm.compile(mod, target, relax_pipeline=no_passes, tir_pipeline=cuda_lowering.PIPELINE)
        )


def pipeline(
    target: TargetLike, *, winograd: bool = True, overlap: Overlap = "refuse"
) -> tvm.ir.transform.Pass:
    """The lowering of Relax alone, for ``tvm.compile(mod, target, relax_pipeline=...)``.

    The target given to ``tvm.compile`` decides what code is generated; give the same to both.
    Warns if `target` is a generic processor, because this pass cannot make it the host.

    Parameters
    ----------
    target : str, dict or Target
        Taken as it is; ``graphgrad.target("llvm")`` is this host.
    winograd, overlap
        As in `compile`.

    Raises
    ------
    TargetError
        The target is unknown or not served.
    ArgumentError
        `overlap` is another word.
    """
    parsed = parse(target)
    if is_generic(parsed):
        warnings.warn(
            f"the target {parsed} names no processor, so generic code is generated, several times "
            'slower than this host can run; pass graphgrad.target("llvm") here and to tvm.compile',
            stacklevel=2,
        )
    return _lowering(parsed, winograd=winograd, overlap=check_overlap_choice(overlap), binds=False)


def _lowering(target: tvm.target.Target, **options: Any) -> tvm.ir.transform.Pass:
    """The lowering for a target, as a pass; the options are fields of `Lowering`."""
    kind = str(target.kind.name)
    if kind not in PIPELINES:
        raise TargetError(
            f"no schedules exist for the target kind {kind!r}; use an llvm or a cuda target"
        )

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower")
    def run_passes(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        with COMPILE_LOCK, target:  # also where `tvm.compile` runs it
            return PIPELINES[kind].run(mod, Lowering(target, **options))

    return run_passes
