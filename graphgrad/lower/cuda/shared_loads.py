"""Loads of straight code that a thread makes once, into registers, for all that reads them.

What is outside of a tensor, as at the border of an image, is not loaded: registers hold what the
expression has in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.kernel_structure import (
    Load,
    Stage,
    is_among,
    is_conditional,
    static,
    substitute_values,
    uses,
)
from ...ir.loops import index, load, registers, store
from ...ir.visits import nodes_in, replace_nodes
from .lanes import each_lane

_MAX_OPERATIONS = 48
"""Operations of a map that is computed anew for each thread that reads its element."""


@dataclass(frozen=True)
class _Shared:
    """A load that a thread makes once.

    Attributes
    ----------
    load : TensorLoad
    value : Expr
        What is held: the load, or of a tensor that is in no memory what computes its element.
    condition : Expr
        Under which it is made.
    otherwise : Expr
        What there is if it is not made.
    held : Buffer
        In registers, with an element for each lane, or one.
    """

    load: Any
    value: Any
    condition: Any
    otherwise: Any
    held: Any


class SharedLoads:
    """The loads of straight code, each made once, before it, and only inside of its tensor.

    Parameters
    ----------
    analyzer : Analyzer
        It knows the ranges of all variables.
    lane : Var
    lanes : int
    maps : mapping, optional
        Of tensors that are in no memory, the maps that compute them, by `is_shareable`.
    """

    def __init__(
        self, analyzer: Any, lane: Any, lanes: int, maps: Mapping[Any, Stage] | None = None
    ):
        self._analyzer, self._lane, self._lanes = analyzer, lane, lanes
        self._maps = maps or {}
        self._shared: list[_Shared] = []
        self._conditions: list[tuple[Any, Any]] = []

    def read(self, value: Any) -> Any:
        """An expression that reads registers."""
        value = replace_nodes(value, tvm.ir.Call, self._chosen)
        return replace_nodes(value, Load, self._from_registers)

    def decide(self, value: Any) -> Any:
        """An expression without choices that are always the same."""
        return replace_nodes(value, tvm.ir.Call, self._decided_choice)

    def statements(self) -> list[Any]:
        """The statements that make the loads."""
        statements: list[Any] = []
        # What is computed waits for loads, so these are under way together.
        for shared in sorted(self._shared, key=lambda each: each.value is not each.load):
            made = self._moved(shared, shared.value)
            holds = self._decided(shared.condition)
            if static(holds) != 1:
                statements.append(self._moved(shared, shared.otherwise))
                made = tirx.IfThenElse(holds, made, None)
            statements.append(made)
        held = [*(held for _, held in self._conditions), *(each.held for each in self._shared)]
        decided = [store(held, [index(0)], condition) for condition, held in self._conditions]
        return [*map(tirx.AllocBuffer, held), *decided, *statements]

    def _moved(self, shared: _Shared, value: Any) -> Any:
        if int(shared.held.shape[0]) == 1:
            return store(shared.held, [index(0)], value)
        return each_lane(self._lane, self._lanes, [store(shared.held, [self._lane], value)])

    def _chosen(self, call: Any) -> Any:
        """A choice that is made once: between an element and a number, or always the same."""
        call = self._decided_choice(call)
        if not is_conditional(call):
            return call
        condition, chosen, other = call.args
        if isinstance(chosen, Load) and _is_number(other):
            return self._from_registers(chosen, condition, other)
        return tirx.if_then_else(self._decided(condition), chosen, other)

    def _decided_choice(self, call: Any) -> Any:
        """A choice, or what is always chosen.

        Of some windows that lie over an element there is none at some places of a tile.
        """
        if not is_conditional(call):
            return call
        condition, chosen, other = call.args
        condition = self._analyzer.simplify(condition)
        if static(condition) is not None:
            return chosen if static(condition) else other
        return tirx.if_then_else(condition, chosen, other)

    def _decided(self, condition: Any) -> Any:
        """A condition that all lanes have in common, from a register.

        In expressions, TVM's analyzer would take what it says of quotients for granted, and divide
        by zero.
        """
        if static(condition) is not None or uses(condition, self._lane):
            return condition
        for known, held in self._conditions:
            if tvm_ffi.structural_equal(known, condition):
                return load(held, [index(0)])
        held = registers("holds", (1,), "bool")
        self._conditions.append((condition, held))
        return load(held, [index(0)])

    def _from_registers(self, access: Any, condition: Any = None, otherwise: Any = None) -> Any:
        """The value of a load, from the registers that hold it."""
        if access.source.scope() != "global":
            return access
        simplify = self._analyzer.simplify
        kept = access if condition is None else tirx.if_then_else(condition, access, otherwise)
        indices = [simplify(at) for at in access.indices]
        always = tirx.const(True, "bool")
        asked = always if condition is None else simplify(condition)
        if uses(asked, self._lane):
            return kept
        with self._analyzer.constraint_scope(asked):
            bounds = [
                bound
                for at, extent in zip(indices, access.source.shape, strict=True)
                for bound in (at >= 0, at < extent)
                if not self._analyzer.can_prove(bound)
            ]
        asked = simplify(reduce(tirx.And, bounds, asked))
        if uses(asked, self._lane):
            return kept
        dtype = str(access.source.dtype)
        otherwise = tirx.const(0, dtype) if otherwise is None else otherwise
        made = load(access.source, indices)
        for known in self._shared:
            if all(
                tvm_ffi.structural_equal(a, b)
                for a, b in (
                    (known.load, made),
                    (known.condition, asked),
                    (known.otherwise, otherwise),
                )
            ):
                return self._value(known.held)
        lanes = self._lanes if any(uses(at, self._lane) for at in indices) else 1
        held = registers("read", (lanes,), dtype)
        producer = self._maps.get(access.source)
        value = made if producer is None else self.read(_element(producer, indices))
        self._shared.append(_Shared(made, value, asked, otherwise, held))
        return self._value(held)

    def _value(self, held: Any) -> Any:
        return load(held, [index(0) if int(held.shape[0]) == 1 else self._lane])


def is_shareable(stage: Stage) -> bool:
    """Whether a map may be computed where its elements are loaded: few plain operations of each."""
    (stored,) = stage.stores
    return (
        stage.operations <= _MAX_OPERATIONS
        and not stage.conditional
        and not any(nodes_in(list(read.indices), Load) for read in stage.loads)
        and all(
            static(at) == 0 or is_among(at, [a.var for a in stage.axes]) for at in stored.indices
        )
    )


def _element(stage: Stage, indices: Sequence[Any]) -> Any:
    """What a map computes as the element at some indices."""
    (stored,), (value,) = stage.stores, stage.values
    at = {axis.var: index(0) for axis in stage.axes}
    at |= {var: each for var, each in zip(stored.indices, indices, strict=True) if var in at}
    return substitute_values(value, at)


def _is_number(value: Any) -> bool:
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tirx.FloatImm | tirx.IntImm)
