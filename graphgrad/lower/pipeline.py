"""From Relax to an executable: the order of passes, and what is checked on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import TargetError
from ..ir.calls import drop_te_gradients
from ..ir.compile_lock import SHARED_STATE
from ..ir.exact_divisions import write_exact_divisions
from ..memory.allocation import allocate_first
from ..memory.argument_checks import check_arguments_once
from ..memory.copies import keep_copies
from ..memory.donation import donate
from ..memory.effect_order import is_fusion_dropping, pin_effects
from ..memory.escape import allocate_escaping
from ..memory.no_alias import keep_noalias, unify_noalias
from ..memory.overlap import Overlap, check_overlaps, checked_overlap, copy_overlaps
from ..memory.ownership import own_constants, own_views
from ..memory.result_checks import check_results
from ..runtime.threads import prepare as prepare_threads
from .build.cache import compiled_once
from .build.early import EarlyBuilds
from .build.gc_pause import without_collection
from .build.parallel import compile_kernels
from .cpu import schedule as cpu
from .cpu.guarded_reads import guard_reads
from .cpu.horizontal import fuse_horizontally, mark_flat_maps
from .cpu.nan import vectorize_nan_tests
from .cpu.vector_math import vectorize_math
from .cpu.vector_unit import vector_unit
from .cuda import lowering as cuda_lowering
from .cuda import schedule as cuda_schedule
from .cuda.compiler import arch_of, compiling_for, executable_sources, machine_code
from .cuda.sorting import sort_on_device
from .fusion import (
    fuse_rowwise,
    fuse_siblings,
    name_inner_tuples,
    recompute_maps,
    replace_tuples,
    share_results,
)
from .fusion.accumulate import accumulate_early, fuse_accumulation
from .graph.direct_calls import resolve_closures
from .graph.legalize import legalize_ops
from .graph.permuted_products import fold_permutations
from .graph.static_kernels import specialize_kernels
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
    overlap = checked_overlap(overlap)

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
    with SHARED_STATE, target, without_collection():
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
    return _lowering(parsed, winograd=winograd, overlap=checked_overlap(overlap))


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
        kernel = vectorize_nan_tests(guard_reads(write_exact_divisions(kernel)))
        if early is not None:
            early.offer(name, vectorize_math(kernel))
        return kernel

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower")
    def lower(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        with SHARED_STATE, target:
            if kind == "cuda":
                mod = sort_on_device(mod)
            mod = specialize_kernels(drop_te_gradients(mod))
            if kind == "llvm":
                mod = fold_permutations(mod)
            mod = name_inner_tuples(accumulate_early(mod))
            mod = _to_kernels(fuse=not _fusion_fails(mod))(mod)
            if kind == "llvm":
                mod = fuse_siblings(mod, cpu.may_repeat)
                mod = fuse_rowwise(mod, vector_unit(target), cpu.may_repeat)
            mod = fuse_accumulation(mod)
            if overlap == "copy":
                mod = copy_overlaps(mod)
            if kind == "cuda":
                mod = cuda_schedule.schedule_module(mod, target, kernels)
                mod = _of_kernels(write_exact_divisions, mod)
            else:
                mod, flat_maps = mark_flat_maps(mod)
                mod = unify_noalias(cpu.schedule_module(mod, target, winograd, finish))
            mod = donate(mod)
            if kind == "llvm":
                mod = _of_kernels(vectorize_math, fuse_horizontally(mod, flat_maps))
            mod = keep_noalias(_to_virtual_machine(is_device=kind == "cuda")(mod))
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
        _as_pass(replace_tuples),
        _as_pass(share_results),
        relax.transform.AnnotateTIROpPattern(),
        _as_pass(recompute_maps),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return tvm.transform.Sequential(
        [
            _as_pass(own_constants),
            relax.transform.LambdaLift(),
            _as_pass(resolve_closures),
            _as_pass(pin_effects),
            _as_pass(legalize_ops),
            _as_pass(own_constants),  # of functions that have been local
            *(fusion if fuse else []),
            _as_pass(own_views),
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
            _as_pass(allocate_escaping),
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
