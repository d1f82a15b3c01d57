"""Machine code for processors: the kernels of a large module, compiled in several pieces at once.

TVM makes one LLVM module of all kernels, which one thread optimizes, and which one thread turns
into machine code later, when it is loaded. Nearly all of the time until a training step first runs
is spent in those two. Kernels do not call each other, so they are divided among as many LLVM
modules as the target has cores, each with a thread of its own; TVM does not hold Python's lock
meanwhile.

The modules are joined by functions of ``tvm.relax.vm_build`` that are private to TVM, and that only
this file calls. Their order is that of ``tvm.relax.build`` of 0.27.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.ir import prim
from tvm.relax import vm_build
from tvm.s_tir import SBlockRealize
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ...ir.kernel_structure import static
from ...ir.visits import nodes_in
from ...memory.argument_checks import CHECK, skip_checks
from ...tvm_fixes.hooks import tir_passes
from .library import LinkedExecutable, UnoptimizedExecutable
from .ramps import add_ramps
from .thread_pool import map_in_threads

Kernels: TypeAlias = dict[Any, tirx.PrimFunc]
"""Kernels by their global variables."""

Built: TypeAlias = tuple[tvm.runtime.Module, str]
"""An LLVM module, and the name of one of its kernels."""

TakeEarly: TypeAlias = Callable[[Kernels], dict[Any, "Future[Built]"]]
"""Returns those of some kernels that are built already, or are being built; see `EarlyBuilds`."""

_MIN_PIECE_STATEMENTS = 500
"""Statements from which on an LLVM module and a thread pay: these compile in about a second."""

_KERNEL_OVERHEAD_STATEMENTS = 25
"""The fixed cost of a kernel, in statements: the code that reads its arguments."""

_DEFAULT_OPT_LEVEL = 2
"""That of TVM's targets that name none."""


class Piece(NamedTuple):
    """Kernels that become one LLVM module, and the target that they are compiled for."""

    kernels: Kernels
    target: tvm.target.Target


PIPELINE = "graphgrad.cpu"
"""Name of TVM's lowering of PrimFuncs, without what is not needed, as TVM takes it."""

_NEEDLESS = (
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LiftThreadBinding",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.LowerAutoCopy",
    "s_tir.UnifyThreadBinding",
    "s_tir.InjectPermutedLayout",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.LowerVtcmAlloc",
    "s_tir.ThreadSync",
    "s_tir.InferFragment",
    "s_tir.LowerThreadAllreduce",
    "s_tir.MergeSharedMemoryAllocations",
    "tirx.RemoveNoOp",
)
"""Passes of TVM's lowering that change kernels of devices alone, and one that LLVM repeats.

Not its search for common subexpressions: LLVM has them too, but the step of ResNet-18 took longer
by 0.02 with what it makes of them. Nor `InjectSoftwarePipeline`, which gives variables that are
defined twice two names, in any kernel; the passes that follow rely on it.
"""


def compile_kernels(
    mod: tvm.IRModule, target: tvm.target.Target, early: TakeEarly | None = None
) -> Any:
    """The executable of a lowered module, made by as many threads as the target has cores.

    The code of a kernel does not depend on the number of pieces. A module stays in one piece, made
    as TVM makes it, if it is small, if kernels call each other, if it has attributes, or if the
    current pass context has instruments, which see the passes of one thread alone.

    Parameters
    ----------
    mod : IRModule
        Scheduled kernels, and functions that are instructions of the virtual machine.
    target : Target
        Of the kind llvm. Its ``num-cores`` is the largest number of pieces.
    early : callable, optional
        Asked for kernels that have been built before, unless the module stays in one piece.

    Returns
    -------
    tvm.runtime.Executable

    Raises
    ------
    Exception
        Whatever TVM raises about a kernel: that of the first piece that fails.
    """
    executable = _compiled(mod, target, early)
    is_optimized = int(target.attrs.get("opt-level", _DEFAULT_OPT_LEVEL)) > 0
    return executable if is_optimized else UnoptimizedExecutable(executable.mod)


def _compiled(mod: tvm.IRModule, target: tvm.target.Target, early: TakeEarly | None) -> Any:
    """The executable of a module, in one piece or in several."""
    kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    piece_limit = _count(mod, kernels, int(target.attrs.get("num-cores", 1)))
    if piece_limit < 2:
        no_passes = tvm.transform.Sequential([])
        return LinkedExecutable.of(
            tvm.compile(mod, target, relax_pipeline=no_passes, tir_pipeline=PIPELINE)
        )
    early_builds = early(kernels) if early is not None else {}
    remaining = {
        variable: kernel for variable, kernel in kernels.items() if variable not in early_builds
    }
    built = list(dict.fromkeys(early_builds.values()))  # one may be the module of several kernels
    return _compile_pieces(mod, target, _pieces(remaining, target, piece_limit), built)


def _tir_pipeline() -> tuple[Any, Any, Any]:
    """TVM's lowering of PrimFuncs, and after it what its simplifier must not see."""
    lower_all, for_host, for_device = tir_passes("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.lower_kernels")
    def lowering(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        lowered = tvm.IRModule(attrs=mod.attrs)
        # Instruments see the passes of the current context alone.
        groups = _by_lowering(mod, bool(context.instruments))
        # The only kernel of a module would be marked as its entry.
        needless = ("tirx.AnnotateEntryFunc",) if len(groups) > 1 else ()
        for chosen, kernels in groups.items():
            with chosen.context(context, needless):
                lowered.update(lower_all(tvm.IRModule(kernels, attrs=mod.attrs)))
        return lowered

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.skip_checks")
    def skip(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return skip_checks(mod)

    return tvm.transform.Sequential([lowering, skip, add_ramps]), for_host, for_device


class _Lowering(NamedTuple):
    """How TVM lowers a kernel.

    Attributes
    ----------
    is_whole : bool
        In the current pass context, with all passes and its instruments.
    binds : bool
        The kernel binds variables in expressions.
    needless : tuple of str
        Passes that would change nothing in it, beside `_NEEDLESS`.
    """

    is_whole: bool
    binds: bool
    needless: tuple[str, ...]

    def context(self, current: tvm.transform.PassContext, needless: tuple[str, ...]) -> Any:
        """The pass context of the lowering; it has no instruments unless it is the current one.

        `needless` are further passes that are left out.
        """
        if self.is_whole:
            return contextlib.nullcontext()
        # TVM overlooks uses of common subexpressions inside of a `Let`. LLVM finds them, too.
        further = {"tirx.disable_cse_tir": True} if self.binds else {}
        return tvm.transform.PassContext(
            opt_level=current.opt_level,
            required_pass=list(current.required_pass),
            disabled_pass=[*current.disabled_pass, *_NEEDLESS, *self.needless, *needless],
            config={**current.config, **further},
        )


_TELLING = (
    prim.Let,
    tirx.IfThenElse,
    SBlockRealize,
    tirx.AllocBuffer,
    tirx.DeclBuffer,
    tvm.ir.GlobalVar,
)
"""The nodes by which a kernel's lowering is chosen."""


def _by_lowering(mod: tvm.IRModule, is_seen: bool) -> dict[_Lowering, Kernels]:
    """Kernels by how they are lowered, where instruments may see the passes of some.

    If any kernel calls another one all are lowered together: TVM rewrites calls inside of a module.
    """
    nodes_of = {variable: nodes_in(func, _TELLING) for variable, func in mod.functions.items()}
    all_nodes = [node for nodes in nodes_of.values() for node in nodes]
    if any(isinstance(node, tvm.ir.GlobalVar) for node in all_nodes):
        nodes_of = dict.fromkeys(nodes_of, all_nodes)
    groups: dict[_Lowering, Kernels] = {}
    for variable, func in mod.functions.items():
        groups.setdefault(_lowering_of(nodes_of[variable], is_seen), {})[variable] = func
    return groups


def _lowering_of(nodes: list[Any], is_seen: bool) -> _Lowering:
    """How to lower a kernel with some nodes among those of `_TELLING`."""
    binds = any(isinstance(node, prim.Let) for node in nodes)
    # What a `Let` binds may be bound twice, until a pass renames it: that needs the others.
    if binds or is_seen:
        return _Lowering(not binds, binds, ())
    needless = []
    if not any(map(_allocates, nodes)):
        needless.append("s_tir.CompactBufferAllocation")
    if not any(map(_branches, nodes)):
        needless.append("s_tir.HoistIfThenElse")
    return _Lowering(False, binds, tuple(needless))


def _allocates(node: Any) -> bool:
    """Whether a node defines a buffer."""
    if isinstance(node, SBlockRealize):
        return bool(len(node.block.alloc_buffers))
    return isinstance(node, tirx.AllocBuffer | tirx.DeclBuffer)


def _branches(node: Any) -> bool:
    """Whether a node is a branch, or is lowered to one: a block with a predicate, or that sets."""
    if isinstance(node, SBlockRealize):
        return node.block.init is not None or static(node.predicate) != 1
    return isinstance(node, tirx.IfThenElse)


register_tir_pipeline(PIPELINE, _tir_pipeline)


class _PiecewiseExecutable(LinkedExecutable):
    """An executable whose LLVM modules become machine code in parallel, when it is first loaded.

    Not before, because one that is only exported, maybe for another processor, is never loaded.
    Each module comes with the name of one of its kernels.
    """

    def __init__(self, linked: tvm.runtime.Module, built: list[Built], threads: int):
        super().__init__(linked)
        self._waiting = built
        self._threads = threads

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """The module to run, as ``tvm.runtime.Executable.jit`` does."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            map_in_threads(_emit, waiting, self._threads)
        return super().jit(**options)


def build(kernels: Kernels, target: tvm.target.Target) -> Built:
    """The LLVM module of some kernels, optimized; its machine code is still to be emitted.

    Parameters
    ----------
    kernels : dict of GlobalVar to PrimFunc
        They have the names by which they are exported, as attributes.
    target : Target
    """
    symbols = [str(func.attrs["global_symbol"]) for func in kernels.values()]
    return tirx.build(tvm.IRModule(kernels), target, PIPELINE), symbols[0]


def _compile_pieces(
    mod: tvm.IRModule, target: tvm.target.Target, pieces: list[Piece], early: list[Future[Built]]
) -> _PiecewiseExecutable:
    """The executable of a module whose kernels are built in pieces, or in early builds."""
    context = tvm.transform.PassContext.current()  # threads have contexts of their own

    def built_piece(piece: Piece) -> Built:
        with context:
            return build(piece.kernels, piece.target)

    # The instructions of the virtual machine. Kernels are linked to them below.
    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, mod)
    built = [*map_in_threads(built_piece, pieces), *(future.result() for future in early)]
    (first_module, _), *further_modules = built
    for module, _ in further_modules:
        # The virtual machine looks for kernels in imported modules, and an export includes them.
        first_module.import_module(module)
    # The linker of `vm_build._vmlink`, which takes one module of kernels only as it builds it.
    linked = vm_build._ffi_api.VMLink(builder, target, first_module, [], {})
    return _PiecewiseExecutable(linked, built, len(pieces))


def _emit(built: Built) -> None:
    """Have LLVM emit the machine code of a module, which it does when first asked for a kernel."""
    module, kernel = built
    module.get_function(kernel)


def _count(mod: tvm.IRModule, kernels: Kernels, most_pieces: int) -> int:
    """The number of pieces of about the same size to divide the kernels of a module into."""
    sizes = [statements_in(func) for func in kernels.values() if not _is_check(func)]
    count = min(most_pieces, len(sizes), piece_count(sum(sizes)))
    return count if count > 1 and _may_be_split(mod, kernels) else 1


def piece_count(statements: int) -> int:
    """The largest number of pieces that kernels with so many statements in all are worth."""
    return statements // _MIN_PIECE_STATEMENTS


def _pieces(kernels: Kernels, target: tvm.target.Target, count: int) -> list[Piece]:
    """Kernels in pieces of about the same size.

    Kernels that check arguments are a further piece, compiled without optimization: they are long,
    take no time to run, and have no floating-point results that it could change.
    """
    checks = {v: f for v, f in kernels.items() if _is_check(f)}
    sizes = {v: statements_in(f) for v, f in kernels.items() if v not in checks}
    groups: list[Kernels] = [{} for _ in range(min(count, len(sizes)))]
    loads = [0] * len(groups)
    # The largest kernel first, each to the group with the least so far; names break ties, so that
    # the division is always the same.
    for variable in sorted(sizes, key=lambda v: (-sizes[v], v.name_hint)):
        lightest = loads.index(min(loads))
        groups[lightest][variable] = kernels[variable]
        loads[lightest] += sizes[variable] + _KERNEL_OVERHEAD_STATEMENTS
    pieces = [Piece(group, target) for group in groups]
    return [*pieces, Piece(checks, _without_optimization(target))] if checks else pieces


def _is_check(kernel: tirx.PrimFunc) -> bool:
    return bool((kernel.attrs or {}).get(CHECK))


def _without_optimization(target: tvm.target.Target) -> tvm.target.Target:
    """A target for which LLVM does not optimize."""
    return tvm.target.Target({**target.export(), "opt-level": 0})


def _may_be_split(mod: tvm.IRModule, kernels: Kernels) -> bool:
    """Whether the kernels of a module may be compiled in pieces, as `compile_kernels` has it."""
    if tvm.transform.PassContext.current().instruments or (mod.attrs and dict(mod.attrs)):
        return False
    if len(kernels) == len(mod.functions):
        return False  # nothing for the virtual machine to run
    return not any(nodes_in(func.body, tvm.ir.GlobalVar) for func in kernels.values())


def statements_in(func: tirx.PrimFunc) -> int:
    """The number of statements of a kernel, which its time to compile grows with."""
    statements = nodes_in(func.body, tirx.Stmt)
    return len(statements)
