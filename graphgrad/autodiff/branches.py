"""Branches: the gradient of an If is an If whose branches are the gradients of its branches.

Each branch of the gradient first computes the branch of the program again, because no value can be
handed over from inside a branch: in a run that takes the other branch it would not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..ir.tensor import Emitter, expression_of
from ..tvm_fixes.hooks import begin_block, end_block


def emit_branch(emitter: Emitter, body: Callable[[], Any]) -> Any:
    """A branch as a new sequence.

    Parameters
    ----------
    emitter : Emitter
    body : callable
        Emits its bindings, and returns its value: a (nested) list of tensors.
    """
    builder = emitter.builder
    begin_block(builder)
    try:
        result = builder.emit(expression_of(body()))
    finally:
        # Also after an error, which would otherwise leave the builder inside of the branch.
        block = end_block(builder)
    return relax.SeqExpr([block], result)


def materialized(cotangent: Any) -> Any:
    """A cotangent whose tensors are all emitted.

    A zero or one that is emitted on its first use (see `graphgrad.ir.tensor`) would otherwise be
    bound inside of one branch, and be undefined for later uses outside.
    """
    if isinstance(cotangent, list):
        return [materialized(part) for part in cotangent]
    if cotangent is None:
        return None
    return cotangent.emitter.lift(cotangent.expr)
