"""Checkpoints of training: state files (`runtime.state_file`), with graphgrad's own errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, CheckpointError
from ..runtime import state_file
from ..runtime.errors import FactsError, StateError
from ..runtime.progress import Progress, progress_in
from ..runtime.state_file import Groups


def write(
    path: str | os.PathLike[str], groups: Mapping[str, Mapping[str, np.ndarray]], facts: dict
) -> None:
    """Write arrays and facts to a file, replacing it in one step; see `state_file.write`.

    Raises
    ------
    ArgumentError
        JSON cannot hold the facts.
    CheckpointError
        The file cannot be written; what stood there before is untouched.
    """
    with _our_errors():
        state_file.write(path, groups, facts)


def read(path: str | os.PathLike[str]) -> tuple[Groups, dict[str, Any]]:
    """Read a file that `write` made; see `state_file.read`.

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or no checkpoint of graphgrad.
    """
    with _our_errors():
        return state_file.read(path)


def read_for(
    path: str | os.PathLike[str],
    current: Callable[[bool], Mapping[str, Mapping[str, np.ndarray]]],
    method: str,
    accumulate: int,
    dtypes: Iterable[Any],
) -> tuple[Groups, Progress]:
    """Read a file that a step is to go on from.

    Parameters
    ----------
    path : path
    current : callable
        Returns the arrays that the step holds, by group, with those of a window if asked to.
    method : str
        The step's optimizer in words.
    accumulate : int
        The micro-batches of its windows.
    dtypes : iterable
        Those of the parameters that train.

    Returns
    -------
    groups : dict
        Arrays of the groups, names, shapes and dtypes of `current`.
    progress : Progress

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or of another model or optimizer, or of an open window of
        another size, or says what cannot be. Nothing is left to be refused once it is read.
    """
    groups, facts = read(path)
    with _our_errors():
        progress = progress_in(path, facts, method, accumulate, dtypes)
        expected = current(progress.accumulated > 0)
        # A group without arrays leaves no trace in the file.
        groups = {group: groups.get(group, {}) for group in {**expected, **groups}}
        state_file.check_match(path, groups, expected)
    return groups, progress


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """While inside, errors of `runtime`, which imports nothing, become those of graphgrad."""
    try:
        yield
    except FactsError as error:  # before `StateError`, of which it is a subclass
        raise ArgumentError(str(error)) from error
    except StateError as error:
        raise CheckpointError(str(error)) from error
