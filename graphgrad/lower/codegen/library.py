"""Shared libraries of executables: machine code emitted by several threads, then linked.

TVM's own export emits one module after the other. The other steps of it are private functions of
TVM, which only this file calls, in the order of ``tvm.runtime.Module.export_library`` of 0.27.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm
from tvm.runtime import _ffi_api
from tvm.support import cc

from ...runtime.threads import threads
from .thread_pool import at_once


def is_linkable(executable: tvm.runtime.Module) -> bool:
    """Whether an executable has machine code, and all of it made by LLVM.

    A program without kernels has none.
    """
    modules = executable._collect_dso_modules()
    return bool(modules) and all(module.kind == "llvm" for module in modules)


def linked_library(executable: tvm.runtime.Module) -> bytes:
    """A shared library of an executable, which ``tvm.runtime.load_module`` loads.

    Parameters
    ----------
    executable : Module
        An executable of the virtual machine, for this host; one that `is_linkable`.

    Raises
    ------
    RuntimeError
        The C compiler, which links, failed.
    """
    modules = executable._collect_dso_modules()
    target = modules[0].get_function("_get_target_string")()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Instructions and constants become a module of data.
        modules.append(_ffi_api.ModulePackImportsToLLVM(executable, False, target, ""))
        objects = [str(folder / f"{index}.o") for index in range(len(modules))]
        pairs = list(zip(modules, objects, strict=True))
        at_once(lambda pair: pair[0].write_to_file(pair[1]), pairs, threads())
        library = folder / "library.so"
        cc.create_shared(str(library), objects)
        return library.read_bytes()
