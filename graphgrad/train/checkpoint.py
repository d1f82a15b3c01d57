"""Checkpoints of training: state files (`runtime.state_file`), with graphgrad's own errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, CheckpointError
from ..runtime import state_file
from ..runtime.errors import FactsError, InputError, StateError
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
    with our_errors():
        state_file.write(path, groups, facts)


def read(path: str | os.PathLike[str]) -> tuple[Groups, dict[str, Any]]:
    """Read a file that `write` made; see `state_file.read`.

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or no checkpoint of graphgrad.
    """
    with our_errors():
        return state_file.read(path)


@contextlib.contextmanager
def our_errors() -> Iterator[None]:
    """While inside, errors of `runtime`, which imports nothing, become those of graphgrad."""
    try:
        yield
    except (FactsError, InputError) as error:  # before `StateError`, of which the first is one
        raise ArgumentError(str(error)) from error
    except StateError as error:
        raise CheckpointError(str(error)) from error
