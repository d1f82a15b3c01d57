"""What a kernel does, as few kinds of statements: loops, branches and writes.

All that is another way of saying the same is gone: blocks and their bindings, parts of buffers that
have names of their own, vectors, steps, threads launched by attributes, values bound to names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.visits import nodes_in
from ..guarded import Guard
from ..indices.linear_system import Axis
from ..walk import Expr, identity, postorder

Load = tvm.ir.TensorLoad


class RefusedError(Exception):
    """A statement has no tensor expression; the text says why.

    Attributes
    ----------
    block : str
        The name of the block that it stands in.
    statement : str
        It and the loops around it, as they are written; empty if no single one is the reason.
    """

    def __init__(self, reason: str, block: str = ""):
        super().__init__(reason)
        self.block = block
        self.statement = ""


@dataclass(frozen=True)
class Store:
    """`buffer[indices] = value`, in terms of loops and of loads from buffers."""

    buffer: Any
    indices: list[Expr]
    value: Expr


@dataclass(frozen=True)
class Write:
    """Stores that happen at once.

    Attributes
    ----------
    stores : list of Store
    block : str
        The name of the block that they stand in.
    in_any_order : bool
        The block has a reduce axis: its iterations may happen in any order.
    initial : bool
        They come before a reduction, for each element before all that is combined with it.
    atomic : bool
        Threads may do it to the same element.
    source : Stmt or None
        The statement of the kernel that it is, or the first of several; None of one that it has
        not.
    """

    stores: list[Store]
    block: str
    in_any_order: bool = False
    initial: bool = False
    atomic: bool = False
    source: Any = None

    def text(self, loops: Sequence[Any]) -> str:
        """The statement as it is written, and the variables of the loops around it."""
        if self.source is None:
            return ""
        indices = ", ".join(map(str, self.source.indices))
        around = ", ".join(str(var.name) for var in loops)
        where = f" in the loops over {around}" if around else ""
        return f"{self.source.buffer.name}[{indices}] = {self.source.value}{where}"


@dataclass(frozen=True)
class Loop:
    """Statements that are done for each value of a variable, in order.

    Attributes
    ----------
    axis : Axis
    body : list of statements
    lanes : bool
        Its iterations are the lanes of a vector: they happen at once.
    threads : bool
        They are threads, which wait for one another before they read what others wrote.
    """

    axis: Axis
    body: list[Any]
    lanes: bool = False
    threads: bool = False


@dataclass(frozen=True)
class Branch:
    """Statements that are done where a condition goes the way it must."""

    guard: Guard
    body: list[Any]


Statement = Loop | Branch | Write


@dataclass(frozen=True)
class Access:
    """A read or a write of an element, with what stands around it.

    Attributes
    ----------
    buffer : Var
    indices : list of Expr
    write : Write
        The statement that it is a part of; a condition is a part of all that it stands around.
    axes : tuple of Axis
        The loops around it, inside the statement that was asked for.
    guards : tuple of Guard
        The conditions around it, inside the same.
    stores : bool
    """

    buffer: Any
    indices: list[Expr]
    write: Write
    axes: tuple[Axis, ...]
    guards: tuple[Guard, ...]
    stores: bool


def accesses(
    statements: Sequence[Statement], axes: tuple[Axis, ...] = (), guards: tuple[Guard, ...] = ()
) -> Iterator[Access]:
    """The reads and writes of some statements."""
    for statement in statements:
        if isinstance(statement, Loop):
            yield from accesses(statement.body, (*axes, statement.axis), guards)
        elif isinstance(statement, Branch):
            yield from accesses(statement.body, axes, (*guards, statement.guard))
        else:
            conditions = [condition for condition, _ in guards]
            for load in loads([*conditions, *expressions(statement)]):
                yield Access(load.source, list(load.indices), statement, axes, guards, False)
            for store in statement.stores:
                yield Access(store.buffer, store.indices, statement, axes, guards, True)


def expressions(write: Write) -> list[Expr]:
    """The values and the indices of a write."""
    return [e for store in write.stores for e in (store.value, *store.indices)]


def loads(exprs: Sequence[Expr]) -> list[Any]:
    """The loads in some expressions."""
    return nodes_in(list(exprs), Load)


def written(statements: Sequence[Statement]) -> dict[int, Any]:
    """The buffers that some statements write, by their identities."""
    return {identity(a.buffer): a.buffer for a in accesses(statements) if a.stores}


def changed(
    statements: Sequence[Statement],
    expression: Callable[[Expr], Expr],
    store: Callable[[Store], Store],
) -> list[Statement]:
    """Statements with their conditions and writes changed.

    Parameters
    ----------
    statements : sequence of Statement
    expression, store : callable
        What becomes of a condition, and of a store.
    """
    result: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Write):
            result.append(replace(statement, stores=[store(s) for s in statement.stores]))
            continue
        body = changed(statement.body, expression, store)
        if isinstance(statement, Branch):
            condition, way = statement.guard
            result.append(Branch((expression(condition), way), body))
        else:
            result.append(replace(statement, body=body))
    return result


def depends(expr: Expr, variables: Sequence[Any]) -> bool:
    """Whether an expression contains one of some variables."""
    identities = {identity(var) for var in variables}
    return any(identity(var) in identities for var in tirx.analysis.undefined_vars(expr))


def equal(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether some expressions are the same as others."""
    return len(a) == len(b) and all(map(tvm_ffi.structural_equal, a, b))


def integral(guards: Sequence[Guard]) -> list[Expr]:
    """Those conditions that an index map can be inverted under."""
    return [c if way else tirx.Not(c) for c, way in guards if is_integral(c)]


def is_integral(condition: Expr) -> bool:
    """Whether a condition is one on integers that are not read from data."""
    return not loads([condition]) and all(
        "float" not in str(node.ty) for node in postorder(condition)
    )
