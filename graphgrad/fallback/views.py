"""Stages that only move data, read through: what reads a pad of X reads X itself instead.

Then the gradient of a padded convolution comes out on X's own domain, with no border computed and
cut off again, and the stages between need no cotangents of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from .backprop import is_float
from .graph import Operation, map_expressions
from .indices.conditions import conjuncts
from .indices.linear_system import analyzer_of
from .reductions.reduce import stage_axes
from .walk import (
    Expr,
    choice_of,
    contain,
    inline_lets,
    is_load,
    items,
    loaded,
    postorder,
    reads,
    substituted,
    transformed,
)

_MAX_VIEWS = 32
"""Views behind one another that are read through at once, so that a long chain costs no more."""

_MAX_CHOICES = 64
"""Choices in a body beyond which it is not looked at: no pad or concatenation has as many."""

_AFFINE = prim.Add | prim.Sub | prim.Mul | prim.Cast | prim.IntImm | tvm.ir.Var


@dataclass(frozen=True)
class _Choice:
    """What a view is where a condition does not go the way it must: a constant."""

    condition: Expr
    wanted: bool
    otherwise: Expr


def read_through(op: Operation, may_be_left_out: Callable[[te.Tensor], bool]) -> Operation:
    """A stage that reads what views show instead of the views.

    A view is a stage whose body is one load, perhaps where integer conditions hold and a constant
    elsewhere: a pad, a slice, a flip, a transposition, a dilation, one side of a concatenation.
    It is kept where reading through it would put divisions or choices into the indices, as most
    reshapes would: then its own gradient is the simpler stage.

    Parameters
    ----------
    op : Operation
    may_be_left_out : callable
        Whether nothing but its readers needs a tensor's cotangent.

    Returns
    -------
    Operation
        The stage itself if it reads no view. The loop variables stay the same objects.
    """
    if not isinstance(op, te.ComputeOp):
        return op
    if not any(may_be_left_out(t) and _may_be_view(t) for t in items(op.input_tensors)):
        return op
    analyzer = analyzer_of(stage_axes(op))
    unchanged = True

    def change(node: Expr) -> Expr:
        nonlocal unchanged
        if not is_load(node) or not is_float(node.ty):
            return node
        result = _Reading(node, analyzer, may_be_left_out).result()
        unchanged &= result.same_as(node)
        return result

    changed = map_expressions(op, lambda expr: transformed(expr, change))
    return op if unchanged else changed


class _Reading:
    """One load, followed through views."""

    def __init__(
        self, load: Expr, analyzer: Any, may_be_left_out: Callable[[te.Tensor], bool]
    ) -> None:
        self.value = load
        self.analyzer = analyzer
        self.may_be_left_out = may_be_left_out
        self.choices: list[_Choice] = []

    def result(self) -> Expr:
        """The read of the tensor behind the views, inside their conditions."""
        for _ in range(_MAX_VIEWS):
            if not is_load(self.value) or not self._step_through():
                break
        value = self.value
        for choice in reversed(self.choices):
            branches = (value, choice.otherwise)
            if not choice.wanted:
                branches = (choice.otherwise, value)
            value = tirx.if_then_else(choice.condition, *branches)
        return value

    def _step_through(self) -> bool:
        """Replace the load of a view by what the view is there; return whether it was one."""
        tensor, indices = loaded(self.value)
        if not self.may_be_left_out(tensor) or not _may_be_view(tensor):
            return False
        # TVM's analyzer fails on indices that are read.
        if reads(*indices):
            return False
        axes = [axis.var for axis in tensor.op.axis]
        at = [i.astype(str(v.ty)) for i, v in zip(indices, axes, strict=True)]
        body = inline_lets(tensor.op.body[tensor.value_index])
        followed = self._follow(substituted(body, zip(axes, at, strict=True)))
        if followed is None:
            return False
        value, choices = followed
        if is_load(value):
            target, target_indices = loaded(value)
            target_indices = [self.analyzer.simplify(index) for index in target_indices]
            # Harder indices would cost more than the view's own gradient does.
            if self._complexity(target_indices, [*self.choices, *choices]) > self._complexity(
                [self.analyzer.simplify(i) for i in indices], self.choices
            ):
                return False
            value = target(*target_indices)
        self.value = value
        self.choices += choices
        return True

    def _follow(self, body: Expr) -> tuple[Expr, list[_Choice]] | None:
        """The load or the constant that a body is, and its choices; None if neither."""
        choices: list[_Choice] = []
        while not is_load(body):
            if isinstance(body, prim.FloatImm):
                return body, choices
            choice = choice_of(body)
            if choice is None or not _is_of_loops(choice[0]):
                return None
            condition = self.analyzer.simplify(choice[0])
            if isinstance(condition, prim.IntImm):
                body = choice[1] if condition.value else choice[2]
            elif isinstance(choice[2], prim.FloatImm):
                choices.append(_Choice(condition, True, choice[2]))
                body = choice[1]
            elif isinstance(choice[1], prim.FloatImm):
                choices.append(_Choice(condition, False, choice[1]))
                body = choice[2]
            else:
                return None
        return (body, choices) if all(_is_of_loops(i) for i in loaded(body)[1]) else None

    def _complexity(self, indices: Sequence[Expr], choices: Sequence[_Choice]) -> int:
        """The number of operations in indices that are not affine."""
        # A dilation divides by its stride only where nothing remains: that counts as affine.
        exact = [part for choice in choices for part in _exact_divisions(choice)]
        return sum(
            not isinstance(node, _AFFINE)
            and not any(self._divides_exactly(node, division) for division in exact)
            for node in postorder(*indices)
        )

    def _divides_exactly(self, node: Any, division: Any) -> bool:
        """Whether a node divides what a condition says to have no remainder."""
        if not isinstance(node, prim.FloorDiv) or str(node.ty) != str(division.ty):
            return False
        if not self.analyzer.can_prove(tirx.EQ(node.b, division.b)):
            return False
        # What differs by a multiple of the divisor leaves the same remainder, none.
        difference = tirx.floormod(node.a - division.a, node.b)
        return self.analyzer.can_prove(tirx.EQ(difference, tirx.const(0, str(difference.ty))))


def _may_be_view(tensor: te.Tensor) -> bool:
    """Whether a tensor is loads and constants, between which integer conditions choose."""
    if not isinstance(tensor.op, te.ComputeOp):
        return False
    waiting = [tensor.op.body[tensor.value_index]]
    for _ in range(_MAX_CHOICES):
        if not waiting:
            return True
        node = waiting.pop()
        choice = choice_of(node)
        if choice is not None and _is_of_loops(choice[0]):
            waiting += choice[1:]
        elif type(node) is prim.Let:
            waiting.append(node.body)
        elif not is_load(node) and type(node) is not prim.FloatImm:
            return False
    return False


def _is_of_loops(expr: Expr) -> bool:
    """Whether an expression is of integers alone and reads no tensor."""
    return not contain([expr], lambda node: is_load(node) or is_float(node.ty))


def _exact_divisions(choice: _Choice) -> list[Any]:
    """The remainders that a choice says are 0."""
    return [
        part.a
        for part in conjuncts(choice.condition, choice.wanted)
        if isinstance(part, prim.EQ)
        and isinstance(part.a, prim.FloorMod)
        and isinstance(part.b, prim.IntImm)
        and int(part.b) == 0
    ]
