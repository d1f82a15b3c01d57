"""Loops and scratch memory: what the nests of a kernel are put together from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

Statement = Any
Index = Any
Body = Callable[[Any], Statement]


def constant(value: int) -> Any:
    """Return an index that is a number."""
    return tirx.const(value, "int64")


def serial(extent: int | Index, body: Body) -> Statement:
    """Return a loop from 0; `body` is given its variable."""
    return _loop(extent, body, tirx.ForKind.SERIAL)


def parallel(extent: int, body: Body) -> Statement:
    """Return a loop whose trips threads share."""
    return _loop(extent, body, tirx.ForKind.PARALLEL)


def unrolled(extent: int, body: Body) -> Statement:
    """Return a loop that becomes straight code."""
    return _loop(extent, body, tirx.ForKind.UNROLLED)


def vector(lanes: int, body: Body) -> Statement:
    """Return a loop whose trips are the lanes of vectors."""
    return _loop(lanes, body, tirx.ForKind.VECTORIZED)


def sequence(statements: Sequence[Statement]) -> Statement:
    """Return statements one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def scratch(name: str, shape: Sequence[int]) -> Any:
    """Return memory for float32 that one thread, or all of them, work in."""
    return tirx.decl_buffer([constant(n) for n in shape], "float32", name)


def registers(name: str, shape: Sequence[int]) -> Any:
    """Return a few vectors that the code generator keeps in registers, or on the stack."""
    return tirx.decl_buffer([constant(n) for n in shape], "float32", name, scope="local")


def within(buffers: Sequence[Any], body: Statement) -> Statement:
    """Return a statement around which buffers exist."""
    block = SBlock([], [], [], "scratch", body, alloc_buffers=list(buffers))
    return SBlockRealize([], tirx.const(True, "bool"), block)


def store(buffer: Any, indices: Sequence[Index], value: Any) -> Statement:
    """Return the statement that stores one element."""
    return tirx.BufferStore(buffer, value, list(indices))


def load(buffer: Any, indices: Sequence[Index]) -> Any:
    """Return the value of one element."""
    return tirx.BufferLoad(buffer, list(indices))


def zero() -> Any:
    """Return the number 0."""
    return tirx.const(0, "float32")


def blank(buffer: Any, lanes: int, parts: int = 1) -> Statement:
    """The statement that fills scratch memory of one axis with zeros, in parts that threads share."""
    vectors = int(buffer.shape[0]) // (parts * lanes)

    def one(part: Index, v: Index) -> Statement:
        first = (part * vectors + v) * lanes
        return vector(lanes, lambda lane: store(buffer, [first + lane], zero()))

    return parallel(parts, lambda part: serial(vectors, lambda v: one(part, v)))


def _loop(extent: int | Index, body: Body, kind: Any) -> Statement:
    if isinstance(extent, int):
        if extent == 1:
            return body(constant(0))
        extent = constant(extent)
    variable = tirx.Var("i", "int64")
    return tirx.For(variable, constant(0), extent, kind, body(variable))
