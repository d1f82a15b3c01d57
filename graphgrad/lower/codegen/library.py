"""Shared libraries of executables: machine code emitted by several threads, then linked.

TVM's own export emits one module after the other, into files; where LLVM cannot write one, because
the disk is full, it ends the process. Here LLVM writes to memory. The other steps of the export are
private functions of TVM, which only this file calls, in the order of
``tvm.runtime.Module.export_library`` of 0.27.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm.relax.vm_build import VMExecutable
from tvm.runtime import Executable, _ffi_api
from tvm.support import cc

from ...errors import LoweringError
from ...runtime.files import free_space, replace_file
from ...runtime.loading import load_library
from ...runtime.threads import threads
from .thread_pool import map_in_threads

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FORMATS = (".tar", ".wasm")
"""Suffixes of exports that are something else than a shared library for this host."""

_SUFFIX = ".dll" if os.name == "nt" else ".so"

_MAX_OBJECT_BYTES = 1 << 30
"""More than any object has: a limit on the sizes of files that is higher does not matter."""


class LinkedExecutable(VMExecutable):
    """An executable whose library is written by `linked_library`, where that is possible."""

    @classmethod
    def of(cls, executable: Executable) -> Executable:
        """An executable of TVM's as one of these, if it is of the virtual machine."""
        return cls(executable.mod) if isinstance(executable, VMExecutable) else executable

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does, in one step.

        A file is replaced and not written over: a process that has loaded it keeps using it.

        Raises
        ------
        LoweringError
            The library cannot be linked, or the disk is full.
        OSError
            The file cannot be written.
        """
        if options or is_special(file_name) or not is_linkable(self.mod):
            return super().export_library(os.fspath(file_name), **options)
        replace_file(Path(file_name), linked_library(self.mod))
        return None


class UnoptimizedExecutable(LinkedExecutable):
    """An executable that is not to be optimized: it runs as a library that is linked and loaded.

    What TVM makes of an executable in memory is optimized machine code, whatever the target says.
    That takes four times as long as the machine code of a library.
    """

    def __init__(self, mod: tvm.runtime.Module):
        super().__init__(mod)
        self._loaded: tvm.runtime.Module | None = None

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """The module to run, as ``tvm.runtime.Executable.jit`` does."""
        if options or cc.get_cc() is None or not is_linkable(self.mod):
            return super().jit(**options)
        if self._loaded is None:
            try:
                self._loaded = loaded_library(linked_library(self.mod))
            except LoweringError:  # there are other ways
                self._loaded = None
        return self._loaded or super().jit()


def is_special(file_name: str | os.PathLike[str]) -> bool:
    """Whether an export of that name is something else than a shared library for this host."""
    return Path(file_name).suffix in _FORMATS


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
    LoweringError
        The C compiler, which links, failed, or there is no room for what it reads and writes.
    """
    modules = executable._collect_dso_modules()
    target = modules[0].get_function("_get_target_string")()
    # Instructions and constants become a module of data.
    modules.append(_ffi_api.ModulePackImportsToLLVM(executable, False, target, ""))
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            objects = [folder / f"{index}.o" for index in range(len(modules))]
            pairs = list(zip(modules, objects, strict=True))
            map_in_threads(
                lambda pair: pair[1].write_bytes(_machine_code(pair[0])), pairs, threads()
            )
            library = folder / "library.so"
            cc.create_shared(str(library), list(map(str, objects)), _libraries())
            return library.read_bytes()
    except (RuntimeError, OSError) as error:
        raise LoweringError(
            f"the C compiler {cc.get_cc()} cannot link a library: {error}; "
            f"{free_space(Path(tempfile.gettempdir()))}, the folder of temporary files, which the "
            "environment variable TMPDIR names"
        ) from error


def _libraries() -> list[str] | None:
    """What the compiler is told about libraries to link; None for all that it knows.

    That of C++, which TVM takes where it finds it, searches libraries of C++ that no kernel calls,
    and links in half of the time without them. The library of C, whose own list of libraries takes
    a third of the rest, comes with that of mathematics.
    """
    is_gnu = Path(cc.get_cc() or "").name == "g++"
    return ["-nodefaultlibs", "-lm", "-lgcc"] if is_gnu else None


def loaded_library(library: bytes) -> tvm.runtime.Module | None:
    """A library loaded into this process; None if it does not load here.

    It is loaded from a file of its own, which nobody else can replace meanwhile. Two modules loaded
    from one file would share variables, and the one that lives longer would use the other's.
    """
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"program{_SUFFIX}"
            path.write_bytes(library)
            return load_library(path)
    except (RuntimeError, OSError):
        return None


def _machine_code(module: tvm.runtime.Module) -> bytes:
    """The object file of a module of LLVM's, emitted in memory.

    LLVM writes to files alone, so it is given one that is in memory and that no disk can be too
    small for. Linux has such files; elsewhere it is one in the folder of temporary files.

    Raises
    ------
    OSError
        This process may write no files that are large enough.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0] if resource else -1
    # It counts for files in memory too, and LLVM would end the process there as well.
    if 0 <= limit < _MAX_OBJECT_BYTES:
        raise OSError(
            errno.EFBIG, f"files may have {limit:,} bytes alone; see ulimit -f, RLIMIT_FSIZE"
        )
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=".o") as file:
            module.write_to_file(file.name, "o")
            return Path(file.name).read_bytes()
    with open(os.memfd_create("object"), "rb") as file:
        module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()
