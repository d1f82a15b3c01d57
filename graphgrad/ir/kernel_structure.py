"""The structure of a kernel: a sequence of stages, each a loop nest around one block.

Schedules are chosen by this structure alone, never by the name of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx.expr import BinaryOpExpr

from .visits import nodes_in, replace_nodes, visit_nodes

Load = tvm.ir.TensorLoad
_OPERATIONS = (Load, tvm.ir.Call, *BinaryOpExpr.__subclasses__(), tirx.Select, tirx.Cast)

_CONDITIONAL = "prim.if_then_else"
_PURE_EFFECT = 1
"""The greatest of TVM's numbers of effects (`TCallEffectKind`) that says a call is pure."""
REDUCTION_KIND = 2  # the kind of a block iterator that is reduced over, as TVM numbers them
ASSUMED_SYMBOLIC_EXTENT = (
    1024  # what a symbolic extent is taken for when deciding what is worth a parallel loop
)


@dataclass(frozen=True)
class Axis:
    """One loop of a stage: the block's variable, its extent (None if symbolic), its kind."""

    var: Any
    extent: int | None
    reduced: bool


@dataclass(frozen=True)
class Stage:
    """One block with its loops.

    Attributes
    ----------
    name : str
        Unique in its function.
    axes : list of Axis
        In loop order.
    stores : list of BufferStore
        What the block writes; more than one for a reduction of tuples.
    loads : list of TensorLoad
        What it reads, without the accumulators of a reduction.
    calls : frozenset of str
        The functions that it calls, such as ``tirx.exp``.
    operations : int
        The size of its expressions: loads, calls and arithmetic, index arithmetic included.
    values : list of Expr
        What is computed; for a reduction the accumulator combined with the new element.
    """

    name: str
    axes: list[Axis]
    stores: list[Any]
    loads: list[Any]
    calls: frozenset[str]
    operations: int
    values: list[Any]

    @property
    def spatial(self) -> list[Axis]:
        """The axes that are not reduced."""
        return [axis for axis in self.axes if not axis.reduced]

    @property
    def reduced(self) -> list[Axis]:
        """The axes that are reduced over."""
        return [axis for axis in self.axes if axis.reduced]

    @property
    def work(self) -> int:
        """The number of times that the block runs."""
        return volume(self.axes)

    @property
    def conditional(self) -> bool:
        """Whether a load happens only under a condition, so that it cannot be vectorized."""
        return _CONDITIONAL in self.calls

    @property
    def dtype(self) -> str:
        """The dtype of the first output."""
        return str(self.stores[0].buffer.dtype)


def volume(axes: Iterable[Axis]) -> int:
    """The number of points of the loops; a symbolic extent counts as a long one."""
    return math.prod(
        ASSUMED_SYMBOLIC_EXTENT if axis.extent is None else axis.extent for axis in axes
    )


def stages(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of a function in order, or None if it is not a sequence of such."""
    cached = _stages(func)
    return None if cached is None else list(cached)


# One pass after the other asks for the stages of kernels, most of which it leaves as they are.
@lru_cache(maxsize=512)
def _stages(func: tirx.PrimFunc) -> tuple[Stage, ...] | None:
    root = func.body
    if not isinstance(root, SBlockRealize) or root.block.iter_vars:
        return None
    result = []
    for statement in statements_of(root.block.body):
        stage = stage_of(statement)
        if stage is None:
            return None
        result.append(stage)
    return tuple(result)


def stage_of(statement: Any) -> Stage | None:
    """A loop nest as a stage; None if each of its loops is not one axis of one block."""
    nest = loop_nest(statement)
    if nest is None:
        return None
    loops, realize = nest
    block = realize.block
    if block.match_buffers or block.alloc_buffers:
        return None
    bound = list(zip(block.iter_vars, realize.iter_values, strict=True))
    # The block of a scalar has no loop: its one iterator is the constant 0.
    driven = [(axis, value) for axis, value in bound if static(value) is None]
    if len(driven) != len(loops) or not all(
        value.same_as(loop.loop_var) for (_, value), loop in zip(driven, loops, strict=True)
    ):
        return None
    axes = [
        Axis(axis.var, static(axis.dom.extent), int(axis.iter_type) == REDUCTION_KIND)
        for axis, _ in driven
    ]
    return _of_block(block, axes)


def refreshed(stage: Stage, block: SBlock) -> Stage:
    """A stage as it is after other stages were inlined into its block."""
    new_stage = _of_block(block, stage.axes)
    assert new_stage is not None
    return new_stage


def linear_coefficient(index: Any, var: Any) -> int | None:
    """The constant c where `index` is c · var + something without var; None if it is not so."""
    coefficient, *_ = tvm.sym.detect_linear_equation(index, [var]) or (None,)
    return static(coefficient)


def stride(access: Any, var: Any) -> int | None:
    """The number of elements by which an access moves in memory when `var` grows by one.

    `access` is a load or a store. None if that is not a constant.
    """
    shape = buffer_of(access).shape
    total = 0
    for position, index in enumerate(access.indices):
        step = linear_coefficient(index, var)
        if step is None:
            return None
        if step:
            inner = [static(extent) for extent in shape[position + 1 :]]
            if None in inner:
                return None
            total += step * math.prod(inner)  # type: ignore[arg-type]
    return total


def buffer_of(access: Any) -> Any:
    """The buffer that a load reads or a store writes."""
    return access.source if isinstance(access, Load) else access.buffer


def same_indices(access: Any, other: Any) -> bool:
    """Whether two accesses have equal indices."""
    return len(access.indices) == len(other.indices) and all(
        map(tvm_ffi.structural_equal, access.indices, other.indices)
    )


def uses(node: Any, var: Any) -> int:
    """The number of occurrences of `var` in an expression."""
    return sum(occurring.same_as(var) for occurring in nodes_in(node, tvm.ir.Var))


def is_among(buffer: Any, buffers: Iterable[Any]) -> bool:
    """Whether a buffer is one of several."""
    return any(buffer.same_as(other) for other in buffers)


def is_conditional(node: Any) -> bool:
    """Whether a node is a call that evaluates one of two values, under a condition."""
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == _CONDITIONAL


def is_pure(call: Any) -> bool:
    """Whether a call computes a value of its arguments and does nothing else."""
    if not isinstance(call.op, tvm.ir.Op):
        return False
    effect = call.op.get_attr("TCallEffectKind")
    return effect is not None and int(effect) <= _PURE_EFFECT


def substitute_values(node: Any, values: Mapping[Any, Any]) -> Any:
    """An expression or statement with variables replaced, all at once."""
    return replace_nodes(node, tvm.ir.Var, lambda var: values.get(var, var))


def bound_values(body: Any) -> dict[Any, Any]:
    """The values of the variables that statements bind, without references to each other."""
    values: dict[Any, Any] = {}
    for statement in statements_of(body):
        if isinstance(statement, tirx.Bind):
            values[statement.var] = substitute_values(statement.value, values)
    return values


def static(extent: Any) -> int | None:
    """An extent as a number, or None if it is symbolic."""
    return int(extent) if isinstance(extent, int | tirx.IntImm) else None


def statements_of(body: Any) -> list[Any]:
    """The statements of a body, one or several."""
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def loop_nest(statement: Any) -> tuple[list[Any], Any] | None:
    """The loops around a block without a predicate, and the realized block.

    None if the statement is anything else.
    """
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, SBlockRealize) or static(statement.predicate) != 1:
        return None
    return loops, statement


def _of_block(block: SBlock, axes: list[Axis]) -> Stage | None:
    """A block as a stage with given axes; None if it does more than store or reduce."""
    statements = statements_of(block.body)
    stores = [s for s in statements if isinstance(s, tirx.BufferStore)]
    binds = [s for s in statements if isinstance(s, tirx.Bind)]
    reduces = any(axis.reduced for axis in axes)
    if len(stores) + len(binds) != len(statements) or reduces != (block.init is not None):
        return None
    written = [store.buffer for store in stores]
    loads: list[Any] = []
    calls: set[str] = set()
    operations = 0
    accumulates = False

    def visit(node: Any) -> None:
        nonlocal operations, accumulates
        operations += 1
        if isinstance(node, tvm.ir.Call):
            calls.add(str(getattr(node.op, "name", "")))
        elif isinstance(node, Load):
            if any(node.source.same_as(buffer) for buffer in written):
                accumulates = True
            else:
                loads.append(node)

    for statement in statements:
        visit_nodes(statement.value, _OPERATIONS, visit)
    # A stage reads what it stores if and only if it reduces; only a reduction of tuples stores
    # several values.
    if accumulates != reduces or (not reduces and len(stores) != 1):
        return None
    # A reduction of tuples binds its new values to variables before it stores them.
    values = [statement.value for statement in binds or stores]
    return Stage(str(block.name_hint), axes, stores, loads, frozenset(calls), operations, values)
