"""Gradient requests: a gradient is returned, added to an accumulator, or not computed at all.

This is MXNet's ``grad_req``. Gradient rules never see it: the program that is written says
``accumulator + gradient``. Whether the sum is written over the accumulator is decided when it is
lowered (`graphgrad.memory.donation`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..memory.donation import DONATED
from .reverse import add

REQUESTS = ("write", "add", "null")

GradReq: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""One request for all gradients, one for each in order, or a mapping by name.

Names that a mapping leaves out are ``"write"``."""


class Accumulators:
    """The gradient requests of a transform, and the parameters that gradients are added to.

    Parameters
    ----------
    wrt : sequence of relax.Var
        The variables that are differentiated with respect to.
    grad_req : str, sequence or mapping of str
    taken : list of str
        Names that the new parameters must not have; theirs are added.

    Attributes
    ----------
    wrt : list of relax.Var
        Those whose gradient is computed (not ``"null"``), in order.
    params : list of relax.Var
        An accumulator for each variable whose request is ``"add"``, in order, of its type.

    Raises
    ------
    ArgumentError
        A request is unknown, for no variable, or there is one too many or too few; or all are
        ``"null"``.
    """

    def __init__(self, wrt: Sequence[Any], grad_req: GradReq, taken: list[str]):
        requests = dict(zip(wrt, _requests(wrt, grad_req), strict=True))
        self.wrt = [var for var in wrt if requests[var] != "null"]
        if not self.wrt:
            raise ArgumentError('grad_req: all are "null"; ask for one gradient at least')
        self._of = {
            var: relax.Var(unique_name(f"accumulator.{var.name}", taken), var.ty)
            for var in self.wrt
            if requests[var] == "add"
        }
        self.params = list(self._of.values())

    def added(self, emitter: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Emit the sums with the accumulators; the gradients that the transform returns."""
        return tuple(
            self._added(emitter, var, gradient)
            for var, gradient in zip(self.wrt, gradients, strict=True)
        )

    def donations(self, params: Sequence[Any], first: int) -> list[list[int]]:
        """The pairs (parameter, flat output) that donate the accumulators to the sums.

        Parameters
        ----------
        params : sequence of relax.Var
            The parameters of the new function.
        first : int
            The number of tensors that it returns before the gradients.
        """
        pairs = []
        output = first
        for var in self.wrt:
            # An accumulator that is a tuple cannot be donated: pairs name tensors alone.
            if var in self._of and isinstance(var.ty, relax.TensorType):
                pairs.append([params.index(self._of[var]), output])
            output += leaves(var.ty)
        return pairs

    def donated(self, mod: tvm.IRModule, name: str, first: int) -> tvm.IRModule:
        """The module with function `name` asking for the donation of its accumulators."""
        if self._of:
            mod[name] = mod[name].with_attr(DONATED, self.donations(mod[name].params, first))
        return mod

    def _added(self, emitter: Any, var: Any, gradient: Any) -> Any:
        if var not in self._of:
            return gradient
        with emitter.at(None, f"{var.name}_accumulated"):
            return _as_tuples(add(emitter.lift(self._of[var]), _as_lists(gradient)))


def _requests(wrt: Sequence[Any], grad_req: GradReq) -> list[str]:
    """The request of each variable."""
    names = [var.name for var in wrt]
    if isinstance(grad_req, str):
        requests = [grad_req] * len(names)
    elif isinstance(grad_req, Mapping):
        unknown = [name for name in grad_req if names.count(name) != 1]
        if unknown:
            raise ArgumentError(
                f"grad_req names {unknown}, of which there is no one gradient; wrt={names}"
            )
        requests = [grad_req.get(name, "write") for name in names]
    elif not isinstance(grad_req, Sequence):
        raise ArgumentError(f"grad_req={grad_req!r}: expected a word, a sequence or a mapping")
    else:
        requests = list(grad_req)
        if len(requests) != len(names):
            raise ArgumentError(f"grad_req has {len(requests)} entries for {len(names)} gradients")
    for request in requests:
        if request not in REQUESTS:
            raise ArgumentError(
                f"grad_req={request!r}: expected {', '.join(map(repr, REQUESTS[:-1]))} or "
                f"{REQUESTS[-1]!r}"
            )
    return requests


def unique_name(name: str, taken: list[str]) -> str:
    """The name, with a number behind it if it is taken; taken itself from now on."""
    names = (f"{name}_{number}" if number else name for number in itertools.count())
    unique = next(candidate for candidate in names if candidate not in taken)
    taken.append(unique)
    return unique


def leaves(ty: Any) -> int:
    """The number of tensors that a value of a type consists of."""
    return sum(map(leaves, ty.fields)) if isinstance(ty, relax.TupleType) else 1


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value
