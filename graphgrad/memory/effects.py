"""The effects of packed functions on memory: what they write to, keep, and return.

The compiler cannot look into a packed function. Of one that nothing is declared about, the worst is
assumed: it may write to, keep or return any memory that it reaches through its arguments or that
such functions have kept before. Of a declared function only the declared effects are assumed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..runtime.cudnn.engine import NAME as LIBRARY


@dataclass(frozen=True)
class Effects:
    """The effects of a packed function on the memory of its arguments, by position.

    Attributes
    ----------
    mutates : frozenset of int
        Arguments that it writes to.
    keeps : frozenset of int
        Arguments of which something outside the program holds memory after the call.
    returns_alias_of : frozenset of int
        Arguments whose memory its result may have, or may be a part of.
    """

    mutates: frozenset[int] = frozenset()
    keeps: frozenset[int] = frozenset()
    returns_alias_of: frozenset[int] = frozenset()

    def __str__(self) -> str:
        parts = [
            f"{name}={tuple(sorted(positions))}"
            for name, positions in vars(self).items()
            if positions
        ]
        return ", ".join(parts) or "no effects"


NOTHING = Effects()

_RETURNS_VIEW = Effects(returns_alias_of=frozenset([0]))

_KNOWN_EFFECTS: Mapping[str, Effects] = {
    "vm.builtin.copy": _RETURNS_VIEW,  # hands back its argument
    "vm.builtin.ensure_zero_offset": _RETURNS_VIEW,
    "vm.builtin.reshape": _RETURNS_VIEW,
    "vm.builtin.to_device": _RETURNS_VIEW,
    "vm.builtin.tuple_getitem": _RETURNS_VIEW,
    "runtime.TVMTensorCreateView": _RETURNS_VIEW,
    **{
        f"vm.builtin.{name}": NOTHING
        for name in (
            "alloc_shape_heap",
            "check_func_info",
            "check_prim_value_info",
            "check_shape_info",
            "check_string_info",
            "check_tensor_info",
            "check_tuple_info",
            "make_prim_value",
            "make_shape",
            "null_value",
            "shape_of",
            "tensor_to_shape",
        )
    },
    LIBRARY: NOTHING,
    # They store what they learn of a shape in their second argument.
    "vm.builtin.match_prim_value": Effects(mutates=frozenset([1])),
    "vm.builtin.match_shape": Effects(mutates=frozenset([1])),
}
"""Effects of functions of TVM's runtime and virtual machine, and of cuDNN's, by name."""

_EFFECT_FREE_PREFIX = "relax.run."
"""The beginning of the names of TVM's functions in Python that only read their arguments."""

_declared: dict[str, Effects] = {}


def declare_effects(
    name: str,
    mutates: Iterable[int] = (),
    keeps: Iterable[int] = (),
    returns_alias_of: Iterable[int] = (),
) -> None:
    """Declare what a packed function does to memory, so that less has to be assumed.

    What is not named does not happen: a function that is declared with nothing but its name leaves
    its arguments as they are, keeps none, and returns memory of its own. A function that changes
    what an earlier call kept, or that returns a tensor that it keeps, must stay undeclared.

    Parameters
    ----------
    name : str
        Under which the function is registered with TVM. It need not be registered yet.
    mutates : ints
        Positions of the arguments, as the program passes them, that it writes to. The results that
        ``call_dps_packed`` lets a function write are not meant.
    keeps : ints
        Positions of arguments of which it keeps memory beyond the call.
    returns_alias_of : ints
        Positions of arguments whose memory, or a part of it, it may return.

    Raises
    ------
    ArgumentError
        A position is no integer, or negative; or the function was declared otherwise before.

    Examples
    --------
    >>> gg.declare_effects("my.scale_in_place", mutates=[0], returns_alias_of=[0])
    >>> gg.declare_effects("my.log")
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"declare_effects: expected the name of a function, given {name!r}")
    effects = Effects(
        _positions(name, "mutates", mutates),
        _positions(name, "keeps", keeps),
        _positions(name, "returns_alias_of", returns_alias_of),
    )
    previous = _declared.get(name) or known_effects(name)
    if previous is not None and previous != effects:
        raise ArgumentError(
            f"declare_effects({name!r}): declared before with {previous}, now with {effects}; "
            "say once what the function does"
        )
    _declared[name] = effects


def effects_of(name: str) -> Effects | None:
    """The effects of a packed function; None where nothing is known, so that it may do anything."""
    return _declared.get(name) or known_effects(name)


def declared_effects() -> dict[str, Effects]:
    """The declared effects, by function."""
    return dict(_declared)


def known_effects(name: str) -> Effects | None:
    """The effects of one of TVM's own packed functions; None if it is none, or not known."""
    return NOTHING if name.startswith(_EFFECT_FREE_PREFIX) else _KNOWN_EFFECTS.get(name)


def _positions(name: str, kind: str, values: Any) -> frozenset[int]:
    """The positions that a caller gives for one kind of effect, checked."""
    where = f"declare_effects({name!r}, {kind}={values!r})"
    try:
        positions = frozenset(operator.index(position) for position in values)
    except TypeError as error:
        raise ArgumentError(f"{where}: expected positions of arguments, as integers") from error
    if any(position < 0 for position in positions):
        raise ArgumentError(f"{where}: positions are counted from 0; none is negative")
    return positions
