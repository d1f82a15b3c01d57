"""Where training stands, as a state file says it beside its arrays, checked before it is used."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from . import state_file
from .errors import StateError
from .owned import LOSS_SCALE
from .state_file import Groups

_MAX_STEPS = 1 << 53
"""Steps are counted in float64 on the device, which is exact up to here."""

_MAX_SEED = (1 << 31) - 1
"""Seeds are the upper half of a signed word of 64 bits."""


@dataclass(frozen=True)
class Progress:
    """What decides the next steps, beside the arrays.

    Attributes
    ----------
    learning_rate : float
    steps, skipped : int
        Steps so far, and how many of them changed nothing.
    seed : int
    accumulated : int
        Micro-batches of an open window.
    extra : dict
        Facts of whoever saved the file.
    """

    learning_rate: float
    steps: int
    skipped: int
    seed: int
    accumulated: int
    extra: dict[str, Any]

    @property
    def updates(self) -> int:
        """How many steps have changed something."""
        return self.steps - self.skipped


def read_for(
    path: str | os.PathLike[str],
    expected: Callable[[bool], Mapping[str, Mapping[str, Any]]],
    optimizer: str,
    accumulate: int,
    dtypes: Iterable[Any],
    optional: Mapping[str, Any] | None = None,
) -> tuple[Groups, Progress]:
    """Read a state file that a step is to go on from.

    Parameters
    ----------
    path : path
    expected : callable
        Returns what the step holds, arrays or types by group, with a window if asked to.
    optimizer, accumulate, dtypes
        As of `progress_in`.
    optional : mapping, optional
        Arrays by group and name, for groups that a file may lack. What it has of `LOSS_SCALE` is
        passed over where a step has no use for it: the precision may change between two runs.

    Returns
    -------
    groups : dict
        Arrays of the groups, names, shapes and dtypes that were expected.
    progress : Progress

    Raises
    ------
    StateError
        The file is missing, damaged, or of another model or optimizer, or of an open window of
        another size, or says what cannot be. Nothing is left to be refused once it is read.
    """
    groups, facts = state_file.read(path)
    progress = progress_in(path, facts, optimizer, accumulate, dtypes)
    held = expected(progress.accumulated > 0)
    # A group without arrays leaves no trace in the file.
    groups = {group: groups.get(group, {}) for group in {**held, **groups}}
    groups |= {group: arrays for group, arrays in (optional or {}).items() if not groups[group]}
    if LOSS_SCALE not in held:
        groups.pop(LOSS_SCALE, None)
    state_file.check_match(path, groups, held)
    return groups, progress


def progress_in(
    path: str | os.PathLike[str],
    facts: Mapping[str, Any],
    optimizer: str,
    accumulate: int,
    dtypes: Iterable[Any],
) -> Progress:
    """The progress that the facts of a state file tell, for a step that is to go on from it.

    Parameters
    ----------
    path : path
        Names the file in errors.
    facts : mapping
    optimizer : str
        That of the step, in words.
    accumulate : int
        The micro-batches of its windows.
    dtypes : iterable
        Those of the parameters that train.

    Raises
    ------
    StateError
        The file was saved by another optimizer, or in an open window of another size; or a fact is
        missing or is no such value.
    """
    steps = _whole(path, facts, "steps", _MAX_STEPS)
    progress = Progress(
        _rate(path, facts.get("learning_rate"), dtypes),
        steps,
        _whole(path, facts, "skipped", steps),
        _whole(path, facts, "seed", _MAX_SEED),
        _whole(path, {"accumulated": 0, **facts}, "accumulated", _MAX_STEPS),
        facts.get("extra", {}),
    )
    if not isinstance(progress.extra, dict):
        raise StateError(f"{path}: extra is {progress.extra!r}, which is no dict of facts by name")
    if facts.get("optimizer") != optimizer:
        raise StateError(
            f"{path} was saved by {facts.get('optimizer')}, this step uses {optimizer}; build the "
            "step with the same optimizer"
        )
    saved_accumulate = facts.get("accumulate", accumulate)
    if progress.accumulated and saved_accumulate != accumulate:
        raise StateError(
            f"{path} was saved behind {progress.accumulated} of {saved_accumulate} micro-batches "
            f"of a step, but this step has accumulate={accumulate}; load it into one with "
            f"accumulate={saved_accumulate}, or save where step.accumulated is 0"
        )
    if progress.accumulated >= accumulate:
        raise StateError(
            f"{path}: accumulated={progress.accumulated} is no position in a window of {accumulate}"
        )
    return progress


def unfit_rate(rate: Any, dtypes: Iterable[Any]) -> str:
    """Why a value is no learning rate for parameters of some dtypes, in words; empty if it is."""
    try:
        number = float(rate) if isinstance(rate, Real) and not isinstance(rate, bool) else math.nan
    except OverflowError:  # a whole number above all floats
        number = math.inf
    if not 0 <= number < math.inf:
        return "must be a finite number, at least 0"
    for dtype in dict.fromkeys(map(str, dtypes)):
        with np.errstate(over="ignore"):
            if np.isinf(np.float64(number).astype(dtype)):
                return f"is too large for {dtype} parameters"
    return ""


def _rate(path: str | os.PathLike[str], rate: Any, dtypes: Iterable[Any]) -> float:
    reason = unfit_rate(rate, dtypes)
    if reason:
        raise StateError(f"{path}: learning_rate={rate!r} {reason}")
    return float(rate)


def _whole(path: str | os.PathLike[str], facts: Mapping[str, Any], name: str, most: int) -> int:
    """A fact that is a whole number from 0 to `most`."""
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise StateError(f"{path}: {name}={value!r} must be a whole number from 0 to {most}")
    return value
