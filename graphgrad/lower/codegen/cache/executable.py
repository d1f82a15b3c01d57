"""Executables backed by a shared library, which is linked on first use or read from the cache.

A library holds a whole program: machine code, instructions of the virtual machine, constants.
A C compiler links it. Where there is none, machine code is made in memory, as TVM does it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm.relax.vm_build import VMExecutable
from tvm.runtime import Executable
from tvm.support import cc

from ....errors import LoweringError
from ....runtime.files import replace_file
from ..library import is_linkable, is_special, linked_library, loaded_library
from .key import program_key
from .store import SWITCH, chosen_store, warn_once

_LENGTH_BYTES = 8
"""Bytes of the number, at the beginning of an entry, that is the length of the facts."""

Make: TypeAlias = Callable[[tvm.IRModule], tuple[Executable, Any]]
"""Compiles a module; returns the executable, and facts about the compilation as plain values that
JSON can hold, which are cached with it."""


def compiled_once(
    mod: tvm.IRModule, target: tvm.target.Target, options: Mapping[str, Any], make: Make
) -> tuple[Executable, Any]:
    """The result of `make` for a module, made now or by an earlier process.

    Programs for processors are cached, when they are first loaded or exported. Not cached is one
    that is no program of the virtual machine, or has no kernels and so compiles in no time.

    Parameters
    ----------
    mod : IRModule
        The module before lowering.
    target : Target
        A target that is resolved, as `graphgrad.target` does it.
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
    program = mod.clone()  # the caller may change the module before it is compiled once more
    entry = store.read(key)
    cached = None if entry is None else _unpack_entry(entry)

    def make_again() -> Executable:
        return make(program)[0]

    if cached is not None:
        library, loaded, facts = cached
        return LibraryExecutable(library, loaded, make_again), facts
    executable, facts = make(mod)
    if not isinstance(executable, VMExecutable) or not is_linkable(executable.mod):
        return executable, facts

    def keep(library: bytes) -> None:
        store.write(key, _entry(library, facts))

    return KeptExecutable(executable, keep, make_again), facts


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
        if options or is_special(file_name):
            return self._make().export_library(os.fspath(file_name), **options)
        replace_file(Path(file_name), self._library)
        return None


class KeptExecutable(VMExecutable):
    """An executable whose library is linked, cached and loaded when it is first used.

    From then on it is what a later process would have read: the loaded library, without LLVM
    modules. To inspect the code that LLVM makes set ``GRAPHGRAD_CACHE=0``.

    Parameters
    ----------
    made : VMExecutable
        The executable as TVM makes it: machine code is still to be emitted.
    keep : callable
        Puts the library into the cache.
    make : callable
        As in `LibraryExecutable`.
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
        loaded = loaded_library(library)
        if loaded is None:
            warn_once(
                f"a program that the C compiler {cc.get_cc()} has linked does not load, and its "
                "machine code is made once more, in memory: check the compiler, and that there is "
                f"space for temporary files, or set {SWITCH}=0"
            )
            return self._made.jit()
        self._made = LibraryExecutable(library, loaded, self._make)
        super().__init__(loaded)  # nothing holds the LLVM modules any more
        return loaded

    def export_library(self, file_name: str | os.PathLike[str], **options: Any) -> Any:
        """Write a library, as ``tvm.runtime.Executable.export_library`` does."""
        library = None if options or is_special(file_name) else self._kept()
        if library is None:
            return self._made.export_library(os.fspath(file_name), **options)
        replace_file(Path(file_name), library)
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
    encoded_facts = json.dumps(facts).encode()
    return len(encoded_facts).to_bytes(_LENGTH_BYTES, "big") + encoded_facts + library


def _unpack_entry(entry: bytes) -> tuple[bytes, tvm.runtime.Module, Any] | None:
    """The library in an entry, loaded, and the facts; None if it does not load here."""
    end = _LENGTH_BYTES + int.from_bytes(entry[:_LENGTH_BYTES], "big")
    library = entry[end:]
    loaded = loaded_library(library)
    return None if loaded is None else (library, loaded, json.loads(entry[_LENGTH_BYTES:end]))


def _link(made: VMExecutable) -> bytes | None:
    """The library of an executable; None if it cannot be linked, which is warned of once."""
    if cc.get_cc() is None:
        warn_once(
            "compiled programs are not kept for the next process, because there is no C compiler "
            "to link them with: install gcc, g++ or clang, or name one in the environment variable "
            f"CXX; {SWITCH}=0 silences this"
        )
        return None
    try:
        return linked_library(made.mod)
    except LoweringError as error:
        warn_once(
            f"compiled programs are not kept for the next process, because {error}",
            subject="linking",
        )
        return None
