"""How often the body of each stage of a graph is evaluated.

For a convolution Y[n,k,y,x] = Σ X[n,c,sy+r,sx+q] W[k,c,r,q] that is N·K·H·W·C·R·S, its number of
multiply-adds, and what any gradient of it is measured by.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from graphgrad.errors import ArgumentError
from graphgrad.fallback.graph import operations, scan_body
from graphgrad.fallback.kinds import Kind, kind_of


@dataclass(frozen=True)
class Work:
    """What one stage costs.

    Attributes
    ----------
    name : str
        Of the stage.
    kind : Kind or None
        None if the stage was not derived.
    points : int
        How often its body is evaluated: the product of the extents of all its loops.
    reduces : bool
        Whether it sums, or reduces in another way.
    """

    name: str
    kind: Kind | None
    points: int
    reduces: bool


def body_evaluations(*tensors: te.Tensor) -> list[Work]:
    """The cost of each stage that some tensors depend on, in the order of their evaluation.

    Parameters
    ----------
    *tensors : Tensor
        Of constant shapes.

    Raises
    ------
    ArgumentError
        The extent of a loop is not a constant.
    """
    return [_work(op) for op in operations(*tensors) if not isinstance(op, te.PlaceholderOp)]


def contraction_points(*tensors: te.Tensor) -> int:
    """The body evaluations of all sums of products, the multiply-adds of a gradient.

    Those are the stages that reduce, and residue classes; not pads, merges and maps.
    """
    return sum(
        work.points
        for work in body_evaluations(*tensors)
        if work.reduces or work.kind in (Kind.RESIDUE_CLASS, Kind.SCATTER)
    )


def _work(op: Any) -> Work:
    reduces = isinstance(op, te.ComputeOp) and isinstance(op.body[0], tirx.Reduce)
    return Work(str(op.name), kind_of(op), _points(op), reduces)


def _points(op: Any) -> int:
    if isinstance(op, te.ComputeOp):
        return _product((axis.dom.extent for axis in [*op.axis, *op.reduce_axis]), op)
    if isinstance(op, te.ScanOp):
        return sum(_points(stage) for stage in scan_body(op))
    return _stores(op.body, op)


def _stores(statement: Any, op: Any) -> int:
    """The number of times that an extern stage writes, whatever its conditions say."""
    if isinstance(statement, tirx.For):
        return _product([statement.extent], op) * _stores(statement.body, op)
    if isinstance(statement, tirx.SeqStmt):
        return sum(_stores(part, op) for part in statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        branches = [statement.then_case, statement.else_case]
        return sum(_stores(branch, op) for branch in branches if branch is not None)
    return int(isinstance(statement, tirx.BufferStore))


def _product(extents: Iterable[Any], op: Any) -> int:
    numbers = list(extents)
    for extent in numbers:
        if not isinstance(extent, int | prim.IntImm):
            raise ArgumentError(
                f"the stage {op.name} has a loop of extent {extent}: its body evaluations are "
                "counted for constant shapes only"
            )
    return prod(int(extent) for extent in numbers)
