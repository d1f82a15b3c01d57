"""Checkpoints: one safetensors file, written so that a crash never harms the previous one.

The format holds arrays and text only, so that opening a file runs no code. A new file is written
beside its target, flushed to the disk, and renamed over it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import CheckpointError

FORMAT = "graphgrad-checkpoint-1"
_SEPARATOR = "/"

Groups = dict[str, dict[str, np.ndarray]]


def write(
    path: str | os.PathLike[str], groups: Mapping[str, Mapping[str, np.ndarray]], facts: dict
) -> None:
    """Write arrays and facts to a file, replacing it in one step.

    Parameters
    ----------
    path : path
    groups : mapping of str to mapping of str to array
        Group names hold no ``/``.
    facts : dict
        Anything that JSON can hold.

    Raises
    ------
    CheckpointError
        The file cannot be written; what stood there before is untouched.
    """
    arrays = {
        f"{group}{_SEPARATOR}{name}": np.ascontiguousarray(array)
        for group, members in groups.items()
        for name, array in members.items()
    }
    data = save(arrays, metadata={"format": FORMAT, "facts": json.dumps(facts)})
    try:
        replace_file(Path(path), data)
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {path}: {error}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that at every moment its name shows either the old or the new content."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; not every platform lets a folder be opened for that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike[str]) -> tuple[Groups, dict[str, Any]]:
    """Read a file that `write` made.

    Returns
    -------
    groups, facts

    Raises
    ------
    CheckpointError
        The file is missing, damaged, or no checkpoint of graphgrad.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or no checkpoint ({error}); use an older one"
        ) from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but no checkpoint of graphgrad in the format {FORMAT}"
        )
    groups: Groups = {}
    for key, array in arrays.items():
        group, _, name = key.partition(_SEPARATOR)
        groups.setdefault(group, {})[name] = array
    return groups, json.loads(metadata["facts"])


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
    given = _types(groups)
    wanted = _types(expected)
    differences = [
        f"{key}: file has {given.get(key, 'nothing')}, model has {wanted.get(key, 'nothing')}"
        for key in sorted(given.keys() | wanted.keys())
        if given.get(key) != wanted.get(key)
    ]
    if differences:
        shown = "\n  ".join(differences[:5])
        raise CheckpointError(
            f"{path} belongs to another model or optimiser; {len(differences)} difference(s):\n  "
            f"{shown}"
        )


def _types(groups: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, str]:
    return {
        f"{group}{_SEPARATOR}{name}": f"{array.dtype}{list(array.shape)}"
        for group, members in groups.items()
        for name, array in members.items()
    }
