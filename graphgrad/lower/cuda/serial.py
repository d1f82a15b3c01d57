"""The last resort: one thread of the GPU runs the whole kernel, as the host would have."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize


def one_thread(func: tirx.PrimFunc, _: tvm.target.Target) -> tirx.PrimFunc | None:
    """Return the PrimFunc with all its statements in one thread, in their order."""
    root = func.body
    if not isinstance(root, SBlockRealize):
        return None
    block = root.block
    body = on_threads(block.body, {"blockIdx.x": 1, "threadIdx.x": 1})
    return func.with_body(SBlockRealize(list(root.iter_values), root.predicate, _with(block, body)))


def on_threads(body: Any, extents: dict[str, Any]) -> Any:
    """Return a statement inside loops over threads that it does not depend on."""
    for tag, extent in reversed(extents.items()):
        var = tirx.Var(tag.replace(".", "_"), "int32")
        thread = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
        zero = tirx.const(0, "int32")
        body = tirx.For(
            var, zero, tirx.const(extent, "int32"), tirx.ForKind.THREAD_BINDING, body, thread
        )
    return body


def _with(block: SBlock, body: Any) -> SBlock:
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
