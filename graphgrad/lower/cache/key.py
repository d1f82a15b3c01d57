"""What a compiled program depends on, as one digest: equal digests mean equal machine code.

The digest is cryptographic, and of everything that goes into compilation, written out: the program
before lowering with its constants, the target, options, TVM, and the sources of graphgrad. Names
are part of it, because errors show them. A difference that would not matter costs a compilation.

Programs are not kept if something has a part in their compilation that cannot be written out.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ...effects import declared_effects

_PACKAGE = Path(__file__).parents[2]

_LOADED = time.time()

_LOADING_SECONDS = 30
"""How long before that the first module of graphgrad may have been read, at most."""

_OWN_OPS = "graphgrad."

_OPS = (_OWN_OPS, "prim.", "relax.", "te.", "tirx.")
"""How the names of ops begin that TVM or graphgrad has registered."""

_LOWERINGS = (
    "FLegalize",
    "default.FLegalize",
    "default.FLowerIntrinsic",
    "llvm.FLegalize",
    "llvm.FLowerIntrinsic",
)
"""Attributes of ops that hold functions by which they are lowered, in Relax and in kernels."""


def program_key(
    mod: tvm.IRModule, target: tvm.target.Target, options: Mapping[str, Any]
) -> str | None:
    """Return the digest of all that the compilation of a module depends on.

    Parameters
    ----------
    mod : IRModule
        Before lowering.
    target : Target
        Resolved.
    options : mapping
        Of `graphgrad.compile`; plain values.

    Returns
    -------
    str or None
        None if some of it cannot be told: passes with instruments, ops that somebody else lowers,
        modules of other compilers, or sources that have changed since they were loaded.
    """
    context = tvm.transform.PassContext.current()
    if context.instruments or _sources_changed() or _changed_lowerings():
        return None
    try:
        program = tvm.ir.save_json(mod)
        surroundings = tvm.ir.save_json(
            [target, context.opt_level, context.required_pass, context.disabled_pass]
        )
        configuration = tvm.ir.save_json(dict(sorted(context.config.items())))
    except (RuntimeError, TypeError, ValueError):
        return None  # something in it has no written form
    if any(json.dumps(name) in program for name in _foreign_ops()):
        return None
    facts = {
        "configuration": configuration,
        "effects": sorted((name, str(effect)) for name, effect in declared_effects().items()),
        "machine": [sys.platform, platform.machine()],
        "options": dict(options),
        # Independent of the written form, should that not tell two values apart.
        "hash": tvm_ffi.structural_hash(mod),
        "sources": _sources_digest(),
        "surroundings": surroundings,
        "tvm": _tvm_identity(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(program.encode())
    return digest.hexdigest()


@cache
def _sources_digest() -> str:
    """Return a digest of the sources of graphgrad."""
    digest = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources_changed() -> bool:
    """Return whether sources may have been written after this process has read them."""
    return any(path.stat().st_mtime > _LOADED - _LOADING_SECONDS for path in _sources())


@cache
def _sources() -> list[Path]:
    return sorted(_PACKAGE.rglob("*.py"))


@cache
def _tvm_identity() -> list[Any]:
    """Return what tells one build of TVM from another."""
    name = "tvm_compiler.dll" if sys.platform == "win32" else "libtvm_compiler.*"
    libraries = sorted(Path(tvm.__file__).parent.rglob(name))
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in libraries]
    return [tvm.__version__, tvm_ffi.__version__, facts]


def _lowerings() -> dict[tuple[str, str], Any]:
    """Return the functions by which ops are lowered, by op and attribute."""
    return {
        (name, attribute): function
        for name in map(str, tvm.ir.Op.list_op_names())
        for attribute in _LOWERINGS
        if (function := tvm.ir.Op.get(name).get_attr(attribute)) is not None
    }


_known = _lowerings()

_known_ops = frozenset(map(str, tvm.ir.Op.list_op_names()))


def _changed_lowerings() -> bool:
    """Return whether an op that was there at first is lowered by another function now."""
    current = _lowerings()
    return any(
        op in _known_ops and not _is_same(_known.get((op, attribute)), function)
        for (op, attribute), function in current.items()
    )


def _is_same(before: Any, now: Any) -> bool:
    return before is not None and bool(before.same_as(now))


def _foreign_ops() -> list[str]:
    """Return the ops that neither TVM nor graphgrad has registered."""
    return [
        name
        for name in map(str, tvm.ir.Op.list_op_names())
        if not name.startswith(_OPS) or (name not in _known_ops and not name.startswith(_OWN_OPS))
    ]
