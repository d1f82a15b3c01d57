"""Rewriting of kernels: blocks with some of their parts changed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .loops import sequence
from .visits import replace_nodes

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
