"""Conditions that protect nothing, as choices between two values that are both computed.

A branch around a load keeps a loop from being vectorized: a masked copy then takes some twenty
times as long.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ..bindings import fragile
from ..graph import Operation, map_expressions, outputs_of, rewritten
from ..indices.linear_system import Axis
from ..reductions.reduce import stage_axes
from ..walk import (
    Expr,
    called,
    contain,
    depend,
    dtype_name,
    graph_of,
    identity,
    is_conditional,
    is_load,
    postorder,
    reads,
    rebuilt,
)

_MAX_SPECULATIVE_NODES = 128
"""Nodes of an expression that is computed in vain rather than branched around. A branch makes a
loop of vectors one of scalars, so it has to save what sixteen lanes do at once."""

_FUNCTIONS_OF_VECTORS = frozenset(
    f"tirx.{name}"
    for name in ("erf", "exp", "fabs", "isnan", "log", "log1p", "rsqrt", "sigmoid", "sqrt", "tanh")
)
"""Functions that are arithmetic in vectors of float32; others call the C library by element."""


def select_without_branching(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Tensors from stages that branch where that saves a computation, or protects one.

    A condition on what tensors hold chooses between two values, if both are cheap and all that
    they read is inside its tensor whatever the condition says.
    """
    return rewritten(tensors, _rewrite_stage)


def _rewrite_stage(op: Operation) -> list[te.Tensor] | None:
    if not isinstance(op, te.ComputeOp):
        return None
    axes = stage_axes(op)
    return outputs_of(map_expressions(op, lambda expr: _select_values(expr, axes)))


def _select_values(root: Expr, axes: Sequence[Axis]) -> Expr:
    if not contain([root], is_conditional):
        return root
    graph = graph_of([root])
    of_data = _variables_of_data([node for node, _ in graph])
    operands_of = {identity(node): operands for node, operands in graph}
    protected = fragile([root], [node for node, _ in graph], operands_of, axes)
    results: dict[int, Expr] = {}
    for node, operands in graph:
        new = [results[identity(part)] for part in operands]
        results[identity(node)] = rebuilt(node, new, operands)
        if is_conditional(node) and _depends_on_data(operands[0], of_data):
            # Protection is a matter of the original values, cost one of the rewritten ones.
            is_protected = any(identity(value) in protected for value in operands[1:])
            if not is_protected and all(map(_is_cheap, new[1:])):
                results[identity(node)] = tirx.Select(*new)
    return results[identity(root)]


def _variables_of_data(nodes: Sequence[Expr]) -> set[int]:
    """The identities of the variables that are bound to what tensors hold.

    `nodes` are in postorder.
    """
    of_data: set[int] = set()
    # Outer bindings first: an inner one may be of a variable of theirs.
    for node in reversed(nodes):
        if isinstance(node, prim.Let) and _depends_on_data(node.value, of_data):
            of_data.add(identity(node.var))
    return of_data


def _depends_on_data(expr: Expr, of_data: Container[int]) -> bool:
    """Whether an expression depends on what tensors hold, given the variables that do."""
    return reads(expr) or depend([expr], of_data)


def _is_cheap(value: Expr) -> bool:
    """Whether a value is loads and arithmetic of vectors, and not much of it: no branches."""
    nodes = postorder(value)
    return len(nodes) <= _MAX_SPECULATIVE_NODES and all(
        _is_arithmetic(node) for node in nodes if isinstance(node, tvm.ir.Call)
    )


def _is_arithmetic(call: Expr) -> bool:
    """Whether a call costs no more than some arithmetic, in vectors."""
    return is_load(call) or (
        called(call) in _FUNCTIONS_OF_VECTORS and dtype_name(call.ty) == "float32"
    )
