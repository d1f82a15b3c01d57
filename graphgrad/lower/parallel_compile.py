"""Machine code for processors: the kernels of a large module, compiled in several pieces at once.

TVM makes one LLVM module of all kernels, which one thread optimises; and one thread turns it into
machine code, later, when it is loaded. Nearly all of the time until a training step first runs is
spent in those two. Kernels do not call each other, so they are dealt to as many LLVM modules as the
target has cores, each with a thread of its own; TVM leaves Python's lock alone meanwhile.

The pieces are joined by functions of ``tvm.relax.vm_build`` that are private to TVM, and used here
alone. Their order is that of ``tvm.relax.build`` of 0.27.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

from .argument_checks import skip_checks
from .at_once import at_once

Kernels: TypeAlias = dict[Any, tirx.PrimFunc]
"""Kernels by their global variables."""

_SMALLEST_PIECE = 500
"""Statements that are worth a module and a thread: they compile in about a second."""


PIPELINE = "graphgrad.cpu"
"""Name of TVM's lowering of PrimFuncs, without checks that are not needed, as TVM takes it."""


def compile_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Return the executable of a lowered module, made by as many threads as the target has cores.

    The code of a kernel does not depend on the number of pieces. A module stays in one piece, made
    as TVM makes it, if it is small, if kernels call each other, if it has attributes, or if the
    current pass context has instruments, which see the passes of one thread alone.

    Parameters
    ----------
    mod : IRModule
        Scheduled kernels, and functions that are instructions of the virtual machine.
    target : Target
        Of the kind llvm. Its ``num-cores`` is the largest number of pieces.

    Returns
    -------
    tvm.runtime.Executable

    Raises
    ------
    Exception
        Whatever TVM raises about a kernel: that of the first piece that fails.
    """
    pieces = _pieces(mod, int(target.attrs.get("num-cores", 1)))
    if len(pieces) < 2:
        nothing = tvm.transform.Sequential([])
        return tvm.compile(mod, target, relax_pipeline=nothing, tir_pipeline=PIPELINE)
    return _compiled_in_pieces(mod, target, pieces)


def _tir_pipeline() -> tuple[Any, Any, Any]:
    lowering, for_host, for_device = PIPELINE_MAP["s_tir"]()

    @tvm.transform.module_pass(opt_level=0, name="graphgrad.skip_checks")
    def skip(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return skip_checks(mod)

    return tvm.transform.Sequential([lowering, skip]), for_host, for_device


register_tir_pipeline(PIPELINE, _tir_pipeline)


class _ExecutableInPieces(vm_build.VMExecutable):
    """An executable whose LLVM modules become machine code at once, when it is first loaded.

    One that is only exported, maybe for another processor, is not loaded. Each module comes with
    the name of one of its kernels.
    """

    def __init__(self, linked: tvm.runtime.Module, built: list[tuple[tvm.runtime.Module, str]]):
        super().__init__(linked)
        self._waiting = built

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """Return the module to run, as ``tvm.runtime.Executable.jit`` does."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            at_once(_emit, waiting)
        return super().jit(**options)


def _compiled_in_pieces(
    mod: tvm.IRModule, target: tvm.target.Target, pieces: list[Kernels]
) -> _ExecutableInPieces:
    context = tvm.transform.PassContext.current()  # of this thread; others have contexts of theirs

    def build(piece: Kernels) -> tuple[tvm.runtime.Module, str]:
        symbols = [str(func.attrs["global_symbol"]) for func in piece.values()]
        with context:
            return tirx.build(tvm.IRModule(piece), target, PIPELINE), symbols[0]

    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, mod)
    built = at_once(build, pieces)
    (first, _), *others = built
    for other, _ in others:
        first.import_module(other)  # where the machine looks for kernels, and what is exported
    # The linker of `vm_build._vmlink`, which takes one module of kernels only as it builds it.
    return _ExecutableInPieces(vm_build._ffi_api.VMLink(builder, target, first, [], {}), built)


def _emit(built: tuple[tvm.runtime.Module, str]) -> None:
    """Have LLVM emit the machine code of a module: it does when it is first asked for a kernel."""
    module, kernel = built
    module.get_function(kernel)


def _pieces(mod: tvm.IRModule, most: int) -> list[Kernels]:
    """Return the kernels of a module in pieces of about the same size; in one if it must be one."""
    kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    sizes = {v: _statements(f) for v, f in kernels.items()}
    count = min(most, len(kernels), sum(sizes.values()) // _SMALLEST_PIECE)
    if count < 2 or not _may_be_split(mod, kernels):
        return [kernels]
    pieces: list[Kernels] = [{} for _ in range(count)]
    loads = [0] * count
    for variable in sorted(kernels, key=lambda v: (-sizes[v], v.name_hint)):
        lightest = loads.index(min(loads))
        pieces[lightest][variable] = kernels[variable]
        loads[lightest] += sizes[variable]
    return [piece for piece in pieces if piece]


def _may_be_split(mod: tvm.IRModule, kernels: Kernels) -> bool:
    if tvm.transform.PassContext.current().instruments or (mod.attrs and dict(mod.attrs)):
        return False
    if len(kernels) == len(mod.functions):
        return False  # nothing for the virtual machine to run
    called: list[Any] = []
    for func in kernels.values():
        tvm_ffi.structural_walk(func.body, (tvm.ir.GlobalVar, called.append))
    return not called


def _statements(func: tirx.PrimFunc) -> int:
    """Return the number of statements of a kernel, by which its time to compile grows."""
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.Stmt, found.append))
    return len(found)
