"""Executables that are a library, made when they are first used, or read from the cache.

A library holds all that a program is: machine code, instructions of the virtual machine, constants.
A C compiler links it. Where there is none, machine code is made in memory, as TVM does it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm.relax.vm_build import VMExecutable
from tvm.support import cc

from ..library import linked_library
from .key import program_key
from .store import SWITCH, chosen_store, say_once

_SUFFIX = ".dll" if os.name == "nt" else ".so"

_LENGTH = 8
"""Bytes of a number in an entry."""

_FORMATS = (".tar", ".wasm")
"""Names of exports that are something else than a library for this host."""


Make: TypeAlias = Callable[[tvm.IRModule], tuple[VMExecutable, Any]]
"""Compiles a module; returns besides what JSON can hold of what was found out on the way."""


def compiled_once(
    mod: tvm.IRModule, target: tvm.target.Target, options: Mapping[str, Any], make: Make
) -> tuple[VMExecutable, Any]:
    """Return what `make` returns of a module, or returned in an earlier process.

    Programs for processors are kept: when they are first loaded or exported.

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
    tuple of VMExecutable and facts

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
    found = None if entry is None else _opened(entry)

    def again() -> VMExecutable:
        return make(program)[0]

    if found is not None:
        library, loaded, facts = found
        return LibraryExecutable(library, loaded, again), facts
    made, facts = make(mod)

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

    def __init__(
        self, library: bytes, loaded: tvm.runtime.Module, make: Callable[[], VMExecutable]
    ):
        super().__init__(loaded)
        self._library = library
        self._make = make

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """Return the module to run, as ``tvm.runtime.Executable.jit`` does."""
        return self._make().jit(**options) if options else self.mod

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does."""
        if options or _is_special(file_name):
            return self._make().export_library(os.fspath(file_name), **options)
        Path(file_name).write_bytes(self._library)
        return None


class KeptExecutable(VMExecutable):
    """An executable whose library is made, kept in the cache and loaded when it is first used.

    From then on it is what a later process would have read.

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
        make: Callable[[], VMExecutable],
    ):
        super().__init__(made.mod)
        self._made = made
        self._keep = keep
        self._make = make
        self._library: bytes | None = None

    def jit(self, **options: Any) -> tvm.runtime.Module:
        """Return the module to run, as ``tvm.runtime.Executable.jit`` does."""
        if not options and isinstance(self._made, LibraryExecutable):
            return self.mod
        library = None if options else self._kept()
        loaded = None if library is None else _loaded(library)
        if library is None or loaded is None:
            return self._made.jit(**options)
        self._made = LibraryExecutable(library, loaded, self._make)
        super().__init__(loaded)  # what LLVM has made of the program is free to go
        return loaded

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does."""
        library = None if options or _is_special(file_name) else self._kept()
        if library is None:
            return self._made.export_library(os.fspath(file_name), **options)
        Path(file_name).write_bytes(library)
        return None

    def _kept(self) -> bytes | None:
        """Return the library, made and kept the first time; None if it cannot be made."""
        if self._library is None:
            self._library = _linked(self._made)
            if self._library is not None:
                self._keep(self._library)
        return self._library


def _entry(library: bytes, facts: Any) -> bytes:
    """Return a library and facts as bytes: the length of the facts, the facts, the library."""
    described = json.dumps(facts).encode()
    return len(described).to_bytes(_LENGTH, "big") + described + library


def _opened(entry: bytes) -> tuple[bytes, tvm.runtime.Module, Any] | None:
    """Return the library in an entry, loaded, and the facts; None if it does not load here."""
    end = _LENGTH + int.from_bytes(entry[:_LENGTH], "big")
    library = entry[end:]
    loaded = _loaded(library)
    return None if loaded is None else (library, loaded, json.loads(entry[_LENGTH:end]))


def _linked(made: VMExecutable) -> bytes | None:
    """Return the library of an executable; None, said once, if there is nothing to link it with."""
    if cc.get_cc() is None:
        say_once(
            "compiled programs are not kept for the next process, because there is no C compiler "
            "to link them with: install gcc, g++ or clang, or name one in the environment variable "
            f"CXX; {SWITCH}=0 silences this"
        )
        return None
    try:
        return linked_library(made.mod)
    except (RuntimeError, OSError) as error:
        say_once(
            "compiled programs are not kept for the next process, because the C compiler "
            f"{cc.get_cc()} cannot link them: {error}"
        )
        return None


def _loaded(library: bytes) -> tvm.runtime.Module | None:
    """Return a library in this process; None if it does not load here.

    It is loaded from a file of its own, which nobody else can replace meanwhile: two modules of one
    file would share variables, and the one that lived longer would use those of the other.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / f"program{_SUFFIX}"
        path.write_bytes(library)
        try:
            return tvm.runtime.load_module(str(path))
        except (RuntimeError, OSError):
            return None


def _is_special(file_name: str | os.PathLike[str]) -> bool:
    return Path(file_name).suffix in _FORMATS
