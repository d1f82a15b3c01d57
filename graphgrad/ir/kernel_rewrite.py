"""Rewriting of kernels: blocks with some of their parts changed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .kernel_structure import statements_of, static, substitute_values
from .loops import sequence
from .visits import replace_nodes

_MAX_WRITTEN_OUT = 32
"""The most loops that an unrolled loop is written out as."""

_PARTS = tuple(inspect.signature(SBlock).parameters)


def replace_block(block: SBlock, **changes: Any) -> SBlock:
    """A block with some of its parts changed, named as `SBlock` names them."""
    unchanged = {part: getattr(block, part) for part in _PARTS if part not in changes}
    return SBlock(**unchanged, **changes)


def replace_realized(realize: SBlockRealize, **changes: Any) -> SBlockRealize:
    """A realized block (a block with its loop values), changed as `replace_block` does."""
    block = replace_block(realize.block, **changes)
    return SBlockRealize(realize.iter_values, realize.predicate, block)


def replace_statements(
    root: SBlockRealize, statements: Sequence[Any], buffers: Sequence[Any]
) -> SBlockRealize:
    """A kernel's outermost block with other statements, and other buffers of its own."""
    return replace_realized(root, body=sequence(*statements), alloc_buffers=list(buffers))


def write_out_unrolled(root: Any) -> Any:
    """A statement whose blocks have the loops that are to be unrolled written out.

    Those are loops of few trips around other loops, such as the steps of an algorithm in place. An
    unrolled loop around single statements is left to the code generator.
    """

    def block(node: SBlock) -> SBlock:
        before = statements_of(node.body)
        parts = [copy for part in before for copy in _copies(part)]
        return node if len(parts) == len(before) else replace_block(node, body=sequence(*parts))

    return replace_nodes(root, SBlock, block)


def _copies(statement: Any) -> list[Any]:
    """A loop as the statements of its trips, if it is to be written out; else as it is."""
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.UNROLLED:
        return [statement]
    parts = statements_of(statement.body)
    first, trips = static(statement.min), static(statement.extent)
    if first is None or trips is None or not all(isinstance(p, tirx.For) for p in parts):
        return [statement]
    if len(parts) * trips > _MAX_WRITTEN_OUT:
        return [statement]
    var = statement.loop_var
    return [
        replace_nodes(
            substitute_values(part, {var: tirx.const(number, str(var.ty))}), tirx.For, _renewed
        )
        for number in range(first, first + trips)
        for part in parts
    ]


def _renewed(loop: Any) -> Any:
    """A loop with a variable of its own."""
    var = tirx.Var(str(loop.loop_var.name), str(loop.loop_var.ty))
    body = substitute_values(loop.body, {loop.loop_var: var})
    return tirx.For(var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)


def with_body(statement: tirx.For, body: Any) -> tirx.For:
    """A loop with another body."""
    return tirx.For(
        statement.loop_var,
        statement.min,
        statement.extent,
        statement.kind,
        body,
        statement.thread_binding,
        statement.annotations,
    )


def rename_blocks(nest: Any, taken: set[str]) -> Any:
    """Statements whose blocks have new names and no annotations.

    Parameters
    ----------
    nest : Stmt
    taken : set of str
        The names in use; the new names are added to it.
    """

    def rename(block: SBlock) -> SBlock:
        name = str(block.name_hint)
        while name in taken:
            name += "_"
        taken.add(name)
        return replace_block(block, name_hint=name, annotations={})

    return replace_nodes(nest, SBlock, rename)
