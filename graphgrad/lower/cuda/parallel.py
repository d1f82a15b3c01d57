"""Kernels written by hand: the points of their parallel loops become the threads of the GPU.

Such a kernel is a sequence of statements. Each becomes a GPU kernel of its own, a launch, so that
it sees all that those before it have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import loop_nest, statements_of, static
from ...ir.loops import block, sequence
from ...ir.visits import nodes_in
from ..kernels.early_inits import initialize_before_loops
from .threads import one_thread_per_point

_SPATIAL_KIND = 0
"""The kind of a block iterator whose points are independent, as TVM numbers them."""

_DECLARATIONS = (tirx.AllocBuffer, tirx.DeclBuffer, tirx.Bind)

Launch = Callable[[Any], Any]
"""Makes a launch of a statement."""


def bind_parallel_loops(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc | None:
    """The PrimFunc with its parallel loops bound to threads.

    None if any of its statements has no parallel loops around it.
    """
    is_serial = False

    def launch(statement: Any) -> Any:
        nonlocal is_serial
        is_serial = is_serial or not independent_loops(statement)[0]
        return launch_points(statement)

    launched = launch_each(func, launch)
    return None if is_serial else launched


def launch_statements(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc:
    """The PrimFunc with each statement launched: in one thread if nothing is parallel."""
    return launch_each(func, launch_points)


def launch_each(func: tirx.PrimFunc, launch: Launch) -> tirx.PrimFunc:
    """The PrimFunc with each of its statements launched."""
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        root = block("root", root)
    return func.with_body(_launch_in_block(root, launch))


def launch_points(statement: Any) -> Any:
    """A launch in which each point of a statement's independent loops has a thread."""
    loops, body = independent_loops(statement)
    return one_thread_per_point(loops, initialize_before_loops(body))


def independent_loops(statement: Any) -> tuple[list[Any], Any]:
    """The outermost loops of a statement whose points do not depend on each other, and their body.

    Those are loops marked parallel and the spatial loops of a block. There are none if the
    statement allocates global memory: points that run in turn can reuse it, but on a GPU all
    threads would share it at the same time.
    """
    loops: list[Any] = []
    outermost = statement
    nest = loop_nest(statement)
    spatial = set() if nest is None else _spatial_variables(nest[1])
    while isinstance(statement, tirx.For) and (
        int(statement.kind) == tirx.ForKind.PARALLEL or statement.loop_var in spatial
    ):
        # Points are numbered over all loops together, so that bounds must not depend on others.
        if any(_mentions(statement, loop.loop_var) for loop in loops):
            break
        loops.append(statement)
        statement = statement.body
    return ([], outermost) if _allocates_global(statement) else (loops, statement)


def _spatial_variables(realize: SBlockRealize) -> set[Any]:
    """The loop variables that alone are a spatial iterator of a block."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return {
        value
        for iterator, value in pairs
        if int(iterator.iter_type) == _SPATIAL_KIND and isinstance(value, tvm.ir.Var)
    }


def _allocates_global(statement: Any) -> bool:
    """Whether a statement allocates memory that is not a thread's own."""
    return any(
        buffer.scope() == "global"
        for node in nodes_in(statement, (SBlock, tirx.AllocBuffer))
        for buffer in (node.alloc_buffers if isinstance(node, SBlock) else [node.buffer])
    )


def _mentions(loop: Any, var: Any) -> bool:
    """Whether the bounds of a loop depend on a variable."""
    return any(node.same_as(var) for node in nodes_in([loop.min, loop.extent], tvm.ir.Var))


def _launch_in_block(realize: SBlockRealize, launch: Launch) -> SBlockRealize:
    """A block of statements with each of them launched."""
    inner_block = realize.block
    statements = statements_of(inner_block.body)
    # A declaration reaches the statements behind it, so that they cannot be launched apart.
    if any(isinstance(statement, _DECLARATIONS) for statement in statements):
        launched = launch(inner_block.body)
    else:
        launches = [
            _launch_in_block(s, launch) if _is_plain_block(s) else launch(s) for s in statements
        ]
        launched = sequence(*launches)
    return replace_realized(realize, body=launched)


def _is_plain_block(statement: Any) -> bool:
    """Whether a statement is a block that runs once: a kernel written by hand."""
    return (
        isinstance(statement, SBlockRealize)
        and not statement.block.iter_vars
        and statement.block.init is None
        and static(statement.predicate) == 1
    )
