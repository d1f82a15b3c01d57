"""Machine code for processors: the kernels of a large module, compiled in several pieces at once.

TVM makes one LLVM module of all kernels, which one thread optimizes; and one thread turns it into
machine code, later, when it is loaded. Nearly all of the time until a training step first runs is
spent in those two. Kernels do not call each other, so they are dealt to as many LLVM modules as the
target has cores, each with a thread of its own; TVM leaves Python's lock alone meanwhile.

The pieces are joined by functions of ``tvm.relax.vm_build`` that are private to TVM, and used here
alone. Their order is that of ``tvm.relax.build`` of 0.27.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from ...ir.visits import nodes_in, visit_nodes
from ...memory.argument_checks import CHECK, skip_checks
from ...tvm_fixes.hooks import tir_passes
from .thread_pool import at_once

Kernels: TypeAlias = dict[Any, tirx.PrimFunc]
"""Kernels by their global variables."""

Built: TypeAlias = tuple[tvm.runtime.Module, str]
"""An LLVM module, and the name of one of its kernels."""

TakeEarly: TypeAlias = Callable[[Kernels], dict[Any, "Future[Built]"]]
"""Returns those of some kernels that are built already, or are being built; see `EarlyBuilds`."""

_MIN_PIECE_STATEMENTS = 500
"""Statements that are worth a module and a thread: they compile in about a second."""

_KERNEL_OVERHEAD_STATEMENTS = 25
"""Statements that take as long to compile as what comes with every kernel: reading arguments."""


class Piece(NamedTuple):
    """Kernels that become one LLVM module, and the target that says how."""

    kernels: Kernels
    target: tvm.target.Target


PIPELINE = "graphgrad.cpu"
"""Name of TVM's lowering of PrimFuncs, without checks that are not needed, as TVM takes it."""


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
    kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    count = _count(mod, kernels, int(target.attrs.get("num-cores", 1)))
    if count < 2:
        nothing = tvm.transform.Sequential([])
        return tvm.compile(mod, target, relax_pipeline=nothing, tir_pipeline=PIPELINE)
    taken = early(kernels) if early is not None else {}
    rest = {variable: kernel for variable, kernel in kernels.items() if variable not in taken}
    built = list(dict.fromkeys(taken.values()))  # one may be the module of several kernels
    return _compile_pieces(mod, target, _pieces(rest, target, count), built)


def _tir_pipeline() -> tuple[Any, Any, Any]:
    lowering, for_host, for_device = tir_passes("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.skip_checks")
    def skip(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return skip_checks(mod)

    return tvm.transform.Sequential([lowering, skip]), for_host, for_device


register_tir_pipeline(PIPELINE, _tir_pipeline)


class _PiecewiseExecutable(vm_build.VMExecutable):
    """An executable whose LLVM modules become machine code at once, when it is first loaded.

    One that is only exported, maybe for another processor, is not loaded. Each module comes with
    the name of one of its kernels.
    """

    def __init__(self, linked: tvm.runtime.Module, built: list[Built], threads: int):
        super().__init__(linked)
        self._waiting = built
        self._threads = threads

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """The module to run, as ``tvm.runtime.Executable.jit`` does."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            at_once(_emit, waiting, self._threads)
        return super().jit(**options)


def build(kernels: Kernels, target: tvm.target.Target) -> Built:
    """The LLVM module of some kernels, optimized; its machine code is still to be emitted.

    Parameters
    ----------
    kernels : dict of GlobalVar to PrimFunc
        With the names by which they are exported.
    target : Target
    """
    symbols = [str(func.attrs["global_symbol"]) for func in kernels.values()]
    return tirx.build(tvm.IRModule(kernels), target, PIPELINE), symbols[0]


def _compile_pieces(
    mod: tvm.IRModule, target: tvm.target.Target, pieces: list[Piece], early: list[Future[Built]]
) -> _PiecewiseExecutable:
    context = tvm.transform.PassContext.current()  # of this thread; others have contexts of theirs

    def built_piece(piece: Piece) -> Built:
        with context:
            return build(piece.kernels, piece.target)

    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, mod)
    built = [*at_once(built_piece, pieces), *(one.result() for one in early)]
    (first, _), *others = built
    for other, _ in others:
        first.import_module(other)  # where the machine looks for kernels, and what is exported
    # The linker of `vm_build._vmlink`, which takes one module of kernels only as it builds it.
    linked = vm_build._ffi_api.VMLink(builder, target, first, [], {})
    return _PiecewiseExecutable(linked, built, len(pieces))


def _emit(built: Built) -> None:
    """Have LLVM emit the machine code of a module: it does when it is first asked for a kernel."""
    module, kernel = built
    module.get_function(kernel)


def _count(mod: tvm.IRModule, kernels: Kernels, most: int) -> int:
    """Into how many pieces of the same size to divide the kernels of a module."""
    sizes = [statements_in(func) for func in kernels.values() if not _is_check(func)]
    count = min(most, len(sizes), piece_count(sum(sizes)))
    return count if count > 1 and _may_be_split(mod, kernels) else 1


def piece_count(statements: int) -> int:
    """Into how many pieces kernels may be divided that have so many statements in all."""
    return statements // _MIN_PIECE_STATEMENTS


def _pieces(kernels: Kernels, target: tvm.target.Target, count: int) -> list[Piece]:
    """Kernels in pieces of about the same size.

    Those that check arguments are a further piece, in which LLVM makes no effort: they are long,
    run in no time, and have nothing that another order of operations could change.
    """
    checks = {v: f for v, f in kernels.items() if _is_check(f)}
    sizes = {v: statements_in(f) for v, f in kernels.items() if v not in checks}
    dealt: list[Kernels] = [{} for _ in range(min(count, len(sizes)))]
    loads = [0] * len(dealt)
    for variable in sorted(sizes, key=lambda v: (-sizes[v], v.name_hint)):
        lightest = loads.index(min(loads))
        dealt[lightest][variable] = kernels[variable]
        loads[lightest] += sizes[variable] + _KERNEL_OVERHEAD_STATEMENTS
    pieces = [Piece(each, target) for each in dealt]
    return [*pieces, Piece(checks, _without_optimization(target))] if checks else pieces


def _is_check(kernel: tirx.PrimFunc) -> bool:
    return bool((kernel.attrs or {}).get(CHECK))


def _without_optimization(target: tvm.target.Target) -> tvm.target.Target:
    """A target for which LLVM emits code as it comes."""
    return tvm.target.Target({**target.export(), "opt-level": 0})


def _may_be_split(mod: tvm.IRModule, kernels: Kernels) -> bool:
    if tvm.transform.PassContext.current().instruments or (mod.attrs and dict(mod.attrs)):
        return False
    if len(kernels) == len(mod.functions):
        return False  # nothing for the virtual machine to run
    called: list[Any] = []
    for func in kernels.values():
        visit_nodes(func.body, tvm.ir.GlobalVar, called.append)
    return not called


def statements_in(func: tirx.PrimFunc) -> int:
    """The number of statements of a kernel, by which its time to compile grows."""
    found = nodes_in(func.body, tirx.Stmt)
    return len(found)
