"""What a compiled program depends on, as one digest: equal digests mean equal machine code.

The digest is cryptographic, and of everything that goes into compilation, written out: the program
before lowering with its constants, the target, options, TVM, and the sources of graphgrad. Names
are part of it, because errors show them. A difference that would not matter costs a compilation.

Programs are not kept if their compilation depends on something that cannot be written out.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi

from ....memory.effects import declared_effects
from .lowerings import changed_lowerings, foreign_ops
from .sources import sources_changed, sources_digest, tvm_identity


def program_key(
    mod: tvm.IRModule, target: tvm.target.Target, options: Mapping[str, Any]
) -> str | None:
    """The digest of all that the compilation of a module depends on.

    Parameters
    ----------
    mod : IRModule
        The module before lowering.
    target : Target
        A target that is resolved, as `graphgrad.target` does it.
    options : mapping
        The options of `graphgrad.compile`; plain values.

    Returns
    -------
    str or None
        None if something it depends on has no digest: passes with instruments, ops that somebody
        else lowers, modules of other compilers, sources that have changed since they were loaded,
        or sources of graphgrad or a library of TVM that are not where they usually are.
    """
    context = tvm.transform.PassContext.current()
    if context.instruments or sources_changed() or changed_lowerings():
        return None
    sources, compiler = sources_digest(), tvm_identity()
    if sources is None or compiler is None:
        return None
    try:
        program = tvm.ir.save_json(mod)
        surroundings = tvm.ir.save_json(
            [target, context.opt_level, context.required_pass, context.disabled_pass]
        )
        configuration = tvm.ir.save_json(dict(sorted(context.config.items())))
    except (RuntimeError, TypeError, ValueError):
        return None  # something in it has no written form
    # The program is JSON, so an op that it calls stands there as a quoted string.
    if any(json.dumps(name) in program for name in foreign_ops()):
        return None
    facts = {
        "configuration": configuration,
        "effects": sorted((name, str(effect)) for name, effect in declared_effects().items()),
        "machine": [sys.platform, platform.machine()],
        "options": dict(options),
        # Independent of the written form, should that not tell two values apart.
        "hash": tvm_ffi.structural_hash(mod),
        "sources": sources,
        "surroundings": surroundings,
        "tvm": compiler,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(program.encode())
    return digest.hexdigest()
