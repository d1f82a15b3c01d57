"""Checkpoints: state files (`exported_step.state_file`), with errors of graphgrad."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, CheckpointError
from ..exported_step import state_file, window
from ..exported_step.errors import FactsError, StateError
from ..exported_step.state_file import Groups


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


def check_match(
    path: str | os.PathLike[str],
    groups: Groups,
    expected: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Raise unless a file's arrays are those of a model: same groups, names, shapes and dtypes.

    Raises
    ------
    CheckpointError
        Lists the first differences.
    """
    with _our_errors():
        state_file.check_match(path, groups, expected)


def accumulated_in(path: str | os.PathLike[str], facts: Mapping[str, Any], accumulate: int) -> int:
    """Return how many micro-batches of an open window a file holds.

    Raises
    ------
    CheckpointError
        It holds some, and a window has not `accumulate` of them.
    """
    with _our_errors():
        return window.accumulated_in(path, facts, accumulate)


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except FactsError as error:
        raise ArgumentError(str(error)) from error
    except StateError as error:
        raise CheckpointError(str(error)) from error
