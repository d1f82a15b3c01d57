"""Executables that are a library, made when they are first used, or read from the cache.

A library holds all that a program is: machine code, instructions of the virtual machine, constants.
A C compiler links it. Where there is none, machine code is made in memory, as TVM does it.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm.relax.vm_build import VMExecutable
from tvm.runtime import Executable
from tvm.support import cc

from ..library import is_linkable, linked_library
from .key import program_key
from .store import SWITCH, chosen_store, warn_once

_SUFFIX = ".dll" if os.name == "nt" else ".so"

_LENGTH_BYTES = 8
"""Bytes of a number in an entry."""

_FORMATS = (".tar", ".wasm")
"""Names of exports that are something else than a library for this host."""


Make: TypeAlias = Callable[[tvm.IRModule], tuple[Executable, Any]]
"""Compiles a module; returns besides what JSON can hold of what was found out on the way."""


def compiled_once(
    mod: tvm.IRModule, target: tvm.target.Target, options: Mapping[str, Any], make: Make
) -> tuple[Executable, Any]:
    """The result of `make` for a module, of now or of an earlier process.

    Programs for processors are kept: when they are first loaded or exported. One that is no program
    of the virtual machine is not, nor one without kernels, whose compilation takes no time.

    Parameters
    ----------
    mod : IRModule
        Before lowering.
    target : Target
        Resolved.
    options : mapping
        All else that `make` depends on; plain values.
    make : callable

    Returns
    -------
    tuple of Executable and facts

    Raises
    ------
    Exception
        Whatever `make` raises.
    """
    store = chosen_store() if str(target.kind.name) == "llvm" else None
    key = program_key(mod, target, options) if store is not None else None
    if store is None or key is None:
        return make(mod)
    program = mod.clone()  # the caller may change his
    entry = store.read(key)
    found = None if entry is None else _unpack_entry(entry)

    def again() -> Executable:
        return make(program)[0]

    if found is not None:
        library, loaded, facts = found
        return LibraryExecutable(library, loaded, again), facts
    made, facts = make(mod)
    if not isinstance(made, VMExecutable) or not is_linkable(made.mod):
        return made, facts

    def keep(library: bytes) -> None:
        store.write(key, _entry(library, facts))

    return KeptExecutable(made, keep, again), facts


class LibraryExecutable(VMExecutable):
    """An executable that was read from the cache.

    Parameters
    ----------
    library : bytes
    loaded : Module
        The library, in this process.
    make : callable
        Compiles the same program, for exports in another form.
    """

    def __init__(self, library: bytes, loaded: tvm.runtime.Module, make: Callable[[], Executable]):
        super().__init__(loaded)
        self._library = library
        self._make = make

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """The module to run, as ``tvm.runtime.Executable.jit`` does."""
        return self._make().jit(**options) if options else self.mod

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does."""
        if options or _is_special(file_name):
            return self._make().export_library(os.fspath(file_name), **options)
        _put(self._library, Path(file_name))
        return None


class KeptExecutable(VMExecutable):
    """An executable whose library is made, kept in the cache and loaded when it is first used.

    From then on it is what a later process would have read: a program that imports a library, whose
    LLVM modules are gone. To inspect the code that LLVM makes set ``GRAPHGRAD_CACHE=0``.

    Parameters
    ----------
    made : VMExecutable
        In the form that TVM makes: machine code is still to be emitted.
    keep : callable
        Puts the library into the cache.
    make : callable
        As of `LibraryExecutable`.
    """

    def __init__(
        self,
        made: VMExecutable,
        keep: Callable[[bytes], None],
        make: Callable[[], Executable],
    ):
        super().__init__(made.mod)
        self._made = made
        self._keep = keep
        self._make = make
        self._library: bytes | None = None

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """The module to run, as ``tvm.runtime.Executable.jit`` does."""
        if not options and isinstance(self._made, LibraryExecutable):
            return self.mod
        library = None if options else self._kept()
        if library is None:
            return self._made.jit(**options)
        loaded = _load(library)
        if loaded is None:
            warn_once(
                f"a program that the C compiler {cc.get_cc()} has linked does not load, and its "
                "machine code is made once more, in memory: check the compiler, and that there is "
                f"space for temporary files, or set {SWITCH}=0"
            )
            return self._made.jit()
        self._made = LibraryExecutable(library, loaded, self._make)
        super().__init__(loaded)  # what LLVM has made of the program is free to go
        return loaded

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does."""
        library = None if options or _is_special(file_name) else self._kept()
        if library is None:
            return self._made.export_library(os.fspath(file_name), **options)
        _put(library, Path(file_name))
        return None

    def _kept(self) -> bytes | None:
        """The library, made and kept the first time; None if it cannot be made."""
        if self._library is None:
            self._library = _link(self._made)
            if self._library is not None:
                self._keep(self._library)
        return self._library


def _entry(library: bytes, facts: Any) -> bytes:
    """A library and facts as bytes: the length of the facts, the facts, the library."""
    described = json.dumps(facts).encode()
    return len(described).to_bytes(_LENGTH_BYTES, "big") + described + library


def _unpack_entry(entry: bytes) -> tuple[bytes, tvm.runtime.Module, Any] | None:
    """The library in an entry, loaded, and the facts; None if it does not load here."""
    end = _LENGTH_BYTES + int.from_bytes(entry[:_LENGTH_BYTES], "big")
    library = entry[end:]
    loaded = _load(library)
    return None if loaded is None else (library, loaded, json.loads(entry[_LENGTH_BYTES:end]))


def _link(made: VMExecutable) -> bytes | None:
    """The library of an executable; None, said once, if there is nothing to link it with."""
    if cc.get_cc() is None:
        warn_once(
            "compiled programs are not kept for the next process, because there is no C compiler "
            "to link them with: install gcc, g++ or clang, or name one in the environment variable "
            f"CXX; {SWITCH}=0 silences this"
        )
        return None
    try:
        return linked_library(made.mod)
    except (RuntimeError, OSError) as error:
        warn_once(
            "compiled programs are not kept for the next process, because the C compiler "
            f"{cc.get_cc()} cannot link them: {error}"
        )
        return None


def _load(library: bytes) -> tvm.runtime.Module | None:
    """A library in this process; None if it does not load here.

    It is loaded from a file of its own, which nobody else can replace meanwhile: two modules of one
    file would share variables, and the one that lived longer would use those of the other.
    """
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"program{_SUFFIX}"
            path.write_bytes(library)
            return tvm.runtime.load_module(str(path))
    except (RuntimeError, OSError):
        return None


def _put(library: bytes, path: Path) -> None:
    """Write a library to a file, in one step.

    A process that has loaded the file of before keeps that: written over it would change under it.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(library)  # a device, or an error
        return
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with unfinished.open("xb") as file:  # who may read it is up to the umask
            file.write(library)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _is_special(file_name: str | os.PathLike[str]) -> bool:
    return Path(file_name).suffix in _FORMATS
