"""Segments that the user has marked: their values are computed again in the backward pass.

``relax.grad.start_checkpoint`` marks what a segment is given, ``relax.grad.end_checkpoint`` what it
hands on; both are kept, and nothing in between (T. Chen et al., *Training deep nets with sublinear
memory cost*, 2016). A value is emitted again when the sweep first asks for it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from ..ir.calls import calls_op
from ..ir.program import Program, emit_binding, variables_in
from ..ir.tensor import Emitter

_START, _END = "relax.grad.start_checkpoint", "relax.grad.end_checkpoint"


class Checkpoints:
    """The marked segments of a program, and what has been emitted of them again.

    Parameters
    ----------
    program : Program
        One that writes to memory has no segments: it must not be computed twice.
    emitter : Emitter
    environment : dict
        From the program's variables to the values that the forward pass has emitted.
    """

    def __init__(self, program: Program, emitter: Emitter, environment: dict[Any, Any]):
        self._emitter, self._environment = emitter, environment
        self._inside = _inside(program) if program.pure else {}
        self._again: dict[Any, Any] = {}

    def environment_of(self, var: Any, value: Any) -> Mapping[Any, Any]:
        """The values of variables as the gradient of a binding is to read them."""
        if var not in self._inside:
            return self._environment
        unvisited = [var, *variables_in(value)]
        needed: set[Any] = set()
        while unvisited:
            other = unvisited.pop()
            if other in self._inside and other not in self._again and other not in needed:
                needed.add(other)
                unvisited += variables_in(self._inside[other])
        current = ChainMap(self._again, self._environment)
        for other, other_value in self._inside.items():  # in the order of the program
            if other in needed:
                self._again[other] = emit_binding(
                    self._emitter.builder, other, other_value, current
                )
        return current


def _inside(program: Program) -> dict[Any, Any]:
    """The bindings of a program that are between the start and the end of a segment, in order."""
    begun: set[Any] = set()
    for var, value in program.bindings:
        is_begun = calls_op(value, _START) or not begun.isdisjoint(variables_in(value))
        if is_begun and not calls_op(value, _END):
            begun.add(var)
    inside: dict[Any, Any] = {}
    reaches_end: set[Any] = set()
    for var, value in reversed(program.bindings):
        if calls_op(value, _END) or var in reaches_end:
            reaches_end.update(begun.intersection(variables_in(value)))
        if var in reaches_end and not calls_op(value, _START):
            inside[var] = value
    return dict(reversed(inside.items()))
