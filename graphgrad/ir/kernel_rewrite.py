"""The rewriter of kernels: their blocks, with some parts changed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tvm.s_tir import SBlock, SBlockRealize

from .loops import sequence
from .visits import replace_nodes

_PARTS = tuple(inspect.signature(SBlock).parameters)


def replace_block(block: SBlock, **changes: Any) -> SBlock:
    """A block with some of its parts changed, named as `SBlock` names them."""
    kept = {part: getattr(block, part) for part in _PARTS if part not in changes}
    return SBlock(**kept, **changes)


def replace_realized(realize: SBlockRealize, **changes: Any) -> SBlockRealize:
    """A block where it stands, with some parts of it changed as `replace_block` does."""
    block = replace_block(realize.block, **changes)
    return SBlockRealize(realize.iter_values, realize.predicate, block)


def replace_statements(
    root: SBlockRealize, statements: Sequence[Any], buffers: Sequence[Any]
) -> SBlockRealize:
    """A kernel's outermost block with other statements, and other buffers of its own."""
    return replace_realized(root, body=sequence(*statements), alloc_buffers=list(buffers))


def rename_blocks(nest: Any, taken: set[str]) -> Any:
    """Statements whose blocks have names that are not taken, which they are then; unannotated."""

    def rename(block: SBlock) -> SBlock:
        name = str(block.name_hint)
        while name in taken:
            name += "_"
        taken.add(name)
        return replace_block(block, name_hint=name, annotations={})

    return replace_nodes(nest, SBlock, rename)
