"""From Relax to an executable: the order of passes, and what is checked on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import TargetError
from ..ir.calls import without_te_gradients
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.exact_divisions import with_exact_divisions
from ..memory.allocation import allocate_first
from ..memory.argument_checks import check_arguments_once
from ..memory.copies import keep_copies
from ..memory.donation import donate
from ..memory.effect_order import in_order, is_fusion_dropping
from ..memory.escape import allocate_retained
from ..memory.no_alias import with_one_promise, with_promise_kept
from ..memory.overlap import Overlap, check_overlap_choice, check_overlaps, copy_overlaps
from ..memory.ownership import with_own_constants, with_own_views
from ..memory.result_checks import check_results
from ..runtime.threads import prepare as prepare_threads
from .build.cache import compiled_once
from .build.early import EarlyBuilds
from .build.gc_pause import pause_gc
from .build.parallel import compile_kernels
from .cpu import schedule as cpu
from .cpu.guarded_reads import with_guarded_reads
from .cpu.horizontal import with_flat_maps_told, with_maps_together
from .cpu.nan import with_vector_nan_tests
from .cpu.vector_math import with_arithmetic, with_vector_mathematics
from .cpu.vector_unit import vector_unit
from .cuda import lowering as cuda_lowering
from .cuda import schedule as cuda_schedule
from .cuda.compiler import arch_of, compiling_for, executable_sources, machine_code
from .cuda.sorting import with_sorting_on_device
from .fusion import (
    with_items_for_tuples,
    with_known_inner_tuples,
    with_repeated_maps,
    with_row_chains,
    with_shared_results,
    with_siblings_joined,
)
from .fusion.accumulate import with_early_sums, with_fused_sums
from .graph.direct_calls import with_direct_calls
from .graph.legalize import with_lowered_ops
from .graph.permuted_products import with_permutations_inside
from .graph.static_kernels import with_static_kernels
from .graph.unlowered import refuse_host_ops, refuse_unlowered
from .target import is_generic, parse
from .target import target as resolve

TargetLike: TypeAlias = str | Mapping[str, Any] | tvm.target.Target


def compile(
    mod: tvm.IRModule,
    target: TargetLike = "llvm",
    *,
    winograd: bool = True,
    overlap: Overlap = "refuse",
) -> Any:
    """Return an executable for the Relax virtual machine.

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

    Returns
    -------
    tvm.runtime.Executable
        To be run by ``relax.VirtualMachine``.

    Raises
    ------
    TargetError
        The target is unknown or not served.
    LoweringError
        For CUDA: some kernels fit no schedule, some ops run on the host alone, or there is no
        compiler of CUDA source.
    ArgumentError
        An attribute that asks for donation is malformed, or `overlap` is another word.
    GraphGradError
        An op has no lowering; all such ops are listed.
    """
    resolved = resolve(target)
    overlap = check_overlap_choice(overlap)

    def make(program: tvm.IRModule) -> tuple[Any, None]:
        with EarlyBuilds(resolved) as early:
            lowered = lower(program, resolved, winograd=winograd, overlap=overlap, early=early)
            return generate(lowered, resolved, early), None

    options = {"winograd": winograd, "overlap": overlap}
    executable, _ = compiled_once(mod, resolved, options, make)
    if str(resolved.kind.name) == "llvm":
        prepare_threads()  # of the thread that is likely to call it
    # Where no CUDA runtime is loaded TVM keeps the source alone, and nobody has compiled it yet.
    for source in executable_sources(executable):
        machine_code(source, arch_of(resolved))
    return executable


def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    kernels: list[cuda_schedule.Kernel] | None = None,
    winograd: bool = True,
    overlap: Overlap = "refuse",
    early: EarlyBuilds | None = None,
) -> tvm.IRModule:
    """Return a module of scheduled kernels and instructions of the Relax virtual machine.

    Parameters
    ----------
    mod : IRModule
    target : Target
        Resolved.
    kernels : list, optional
        Receives, for CUDA, what became of each kernel.
    winograd, overlap
        As of `compile`.
    early : EarlyBuilds, optional
        Where large kernels are built while others are lowered; to be handed to `generate` then.

    Raises
    ------
    TargetError, LoweringError, ArgumentError, GraphGradError
        As `compile`.
    """
    with COMPILE_LOCK, target, pause_gc():
        lowering = _lowering(target, kernels, winograd=winograd, overlap=overlap, early=early)
        return lowering(mod)


def generate(mod: tvm.IRModule, target: tvm.target.Target, early: EarlyBuilds | None = None) -> Any:
    """Return the executable of a module that `lower` has made for the same target.

    Raises
    ------
    LoweringError
        For CUDA: some kernels would run on the host.
    """
    if str(target.kind.name) != "cuda":
        return compile_kernels(mod, target, early.taken if early is not None else None)
    nothing = tvm.transform.Sequential([])
    with compiling_for(target):
        return tvm.compile(mod, target, relax_pipeline=nothing, tir_pipeline=cuda_lowering.PIPELINE)


def pipeline(
    target: TargetLike, *, winograd: bool = True, overlap: Overlap = "refuse"
) -> tvm.ir.transform.Pass:
    """Return the lowering of Relax alone, for ``tvm.compile(mod, target, relax_pipeline=...)``.

    The target given to ``tvm.compile`` decides what code is generated; give the same to both.
    Warns if `target` is a generic processor, because this pass cannot make it the host.

    Parameters
    ----------
    target : str, dict or Target
        Taken as it is; ``graphgrad.target("llvm")`` is this host.
    winograd, overlap
        As of `compile`.

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
    return _lowering(parsed, winograd=winograd, overlap=check_overlap_choice(overlap))


def _lowering(
    target: tvm.target.Target,
    kernels: list[cuda_schedule.Kernel] | None = None,
    winograd: bool = True,
    overlap: Overlap = "refuse",
    early: EarlyBuilds | None = None,
) -> tvm.ir.transform.Pass:
    kind = str(target.kind.name)
    if kind not in ("llvm", "cuda"):
        raise TargetError(
            f"no schedules exist for the target kind {kind!r}; use an llvm or a cuda target"
        )

    def finish(name: str, kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        kernel = with_vector_nan_tests(with_guarded_reads(with_exact_divisions(kernel)))
        if early is not None:
            early.offer(name, with_arithmetic(kernel))
        return kernel

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower")
    def lower(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        with COMPILE_LOCK, target:
            if kind == "cuda":
                mod = with_sorting_on_device(mod)
            mod = with_static_kernels(without_te_gradients(mod))
            if kind == "llvm":
                mod = with_permutations_inside(mod)
            mod = with_known_inner_tuples(with_early_sums(mod))
            mod = _to_kernels(fuse=not _fusion_fails(mod))(mod)
            if kind == "llvm":
                mod = with_siblings_joined(mod, cpu.may_repeat)
                mod = with_row_chains(mod, vector_unit(target), cpu.may_repeat)
            mod = with_fused_sums(mod)
            if overlap == "copy":
                mod = copy_overlaps(mod)
            if kind == "cuda":
                mod = cuda_schedule.schedule_module(mod, target, kernels)
                mod = _of_kernels(with_exact_divisions, mod)
            else:
                mod, flat_maps = with_flat_maps_told(mod)
                mod = with_one_promise(cpu.schedule_module(mod, target, winograd, finish))
            mod = donate(mod)
            if kind == "llvm":
                mod = with_vector_mathematics(with_maps_together(mod, flat_maps))
            mod = with_promise_kept(_to_virtual_machine(is_device=kind == "cuda")(mod))
        refuse_unlowered(mod)
        if kind == "cuda":
            refuse_host_ops(mod)
        return mod

    return lower


def _of_kernels(
    change: Callable[[tirx.PrimFunc], tirx.PrimFunc], mod: tvm.IRModule
) -> tvm.IRModule:
    """Return a module with each kernel changed."""
    changed = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            changed.update_func(name, change(func))
    return changed


def _to_kernels(fuse: bool) -> tvm.ir.transform.Pass:
    """Turn ops into calls of PrimFuncs, fused if asked for.

    Constants are not folded: each fold compiles and runs a kernel at compile time (30 ms), and
    stores a tensor that fusion lets its reader compute for nothing.
    """
    fusion = [
        _as_pass(with_items_for_tuples),
        _as_pass(with_shared_results),
        relax.transform.AnnotateTIROpPattern(),
        _as_pass(with_repeated_maps),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return tvm.transform.Sequential(
        [
            _as_pass(with_own_constants),
            relax.transform.LambdaLift(),
            _as_pass(with_direct_calls),
            _as_pass(in_order),
            _as_pass(with_lowered_ops),
            _as_pass(with_own_constants),  # of functions that have been local
            *(fusion if fuse else []),
            _as_pass(with_own_views),
        ]
    )


def _fusion_fails(mod: tvm.IRModule) -> bool:
    """Return whether stock fusion aborts on a module, or leaves it wrong.

    It does where a function takes a tuple of tuples, where a dataflow block takes a tuple out of a
    tuple, or holds a cast (there it overlooks that the cast reads its source), and where it would
    drop a call that overwrites.
    """
    lifted = relax.transform.LambdaLift()(mod)
    functions = [f for f in lifted.functions.values() if isinstance(f, relax.Function)]
    if any(_takes_nested_tuple(f) or _is_unfit_for_fusion(f) for f in functions):
        return True
    return is_fusion_dropping(mod)


def _takes_nested_tuple(function: relax.Function) -> bool:
    tuples = [p.ty.fields for p in function.params if isinstance(p.ty, relax.TupleType)]
    return any(isinstance(field, relax.TupleType) for fields in tuples for field in fields)


def _is_unfit_for_fusion(function: relax.Function) -> bool:
    return any(
        isinstance(binding, relax.MatchCast) or _takes_tuple_out(binding)
        for block in function.body.blocks
        if isinstance(block, relax.DataflowBlock)
        for binding in block.bindings
    )


def _takes_tuple_out(binding: Any) -> bool:
    is_item = isinstance(binding.value, relax.TupleGetItem)
    return is_item and isinstance(binding.var.ty, relax.TupleType)


def _to_virtual_machine(is_device: bool) -> tvm.ir.transform.Pass:
    """Plan memory and turn calls into instructions: the passes of the stock pipeline.

    Memory of a device is allocated first; a host promises more than it has, so that the order
    there decides nothing but how much of it is in use.
    """
    return tvm.transform.Sequential(
        [
            _as_pass(keep_copies),
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.CallTIRRewrite(),
            _as_pass(check_overlaps),
            *([] if is_device else [_as_pass(check_arguments_once), _as_pass(check_results)]),
            _as_pass(allocate_retained),
            relax.transform.RemovePurityChecking(),
            _plan_memory,
            relax.transform.LowerAllocTensor(),
            *([_as_pass(allocate_first)] if is_device else []),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def _as_pass(change: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.ir.transform.Pass:
    """Return a pass of a function's name, which changes a module as the function does."""

    @tvm.transform.module_pass(opt_level=0, name=f"graphgrad.{change.__name__}")
    def changed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return change(mod)

    return changed


@tvm.transform.module_pass(opt_level=0, name="graphgrad.plan_memory")
def _plan_memory(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Plan the memory of functions without branches.

    TVM's plan gives what is allocated in one branch to another, where it does not exist.
    """
    planned = relax.transform.StaticPlanBlockMemory()(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and _has_branches(function):
            planned.update_func(variable, function)
    return planned


def _has_branches(function: relax.Function) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (relax.If, found.append))
    return bool(found)
