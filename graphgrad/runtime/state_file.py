"""State files: one safetensors file, written so that a crash never harms the previous one.

The format holds arrays and text only, so that opening a file runs no code, and a digest of both,
because safetensors itself does not notice a changed byte. How one is replaced says `files`.

graphgrad's checkpoints are such files, and so is the state in an export.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .errors import FactsError, StateError
from .files import free_space, replace_file
from .json_form import is_object, misfit

_FORMATS = "graphgrad-checkpoint-"
FORMAT = f"{_FORMATS}1"
_SEPARATOR = "/"
_EXTRA = "extra"

Groups = dict[str, dict[str, np.ndarray]]
"""Arrays by group (``params``, ``state``, then the optimizer's buffers by kind) and name."""


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
        Anything that JSON can hold; of the mapping ``facts["extra"]``, values may also be arrays.

    Raises
    ------
    FactsError
        JSON cannot hold the facts, or a file cannot, because they are too long.
    StateError
        The file cannot be written; what stood there before is untouched.
    """
    path = _path(path)
    groups, facts = _split_extra(groups, facts)
    arrays = {
        f"{group}{_SEPARATOR}{name}": np.asarray(array, order="C")
        for group, members in groups.items()
        for name, array in members.items()
    }
    try:
        text = json.dumps(facts)
    except (TypeError, ValueError) as error:
        raise FactsError(f"JSON cannot hold the facts for {path}: {error}") from error
    metadata = {"format": FORMAT, "facts": text, "sha256": _digest(arrays, text)}
    try:
        data = save(arrays, metadata=metadata)
    except SafetensorError as error:  # of a header, which holds the facts, above 100 MB
        raise FactsError(
            f"the facts for {path} take {len(text):,} bytes as JSON, too many for a file "
            f"({error}); give what is long as a numpy array"
        ) from error
    try:
        replace_file(path, data)
    except (OSError, ValueError) as error:
        raise StateError(
            f"cannot write the checkpoint {path}: {error}; {free_space(path.parent)}; what stood "
            "there before is untouched"
        ) from error


def _split_extra(
    groups: Mapping[str, Mapping[str, np.ndarray]], facts: dict
) -> tuple[Mapping[str, Mapping[str, np.ndarray]], dict]:
    """Groups and facts, with the arrays among the extra facts as a group of their own."""
    extra = facts.get(_EXTRA, {})
    arrays = {
        name: value
        for name, value in (extra.items() if isinstance(extra, Mapping) else ())
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    }
    if not arrays:
        return groups, facts
    rest = {name: value for name, value in extra.items() if name not in arrays}
    return {**groups, _EXTRA: arrays}, {**facts, _EXTRA: rest}


def _path(path: Any) -> Path:
    """A path, after checking that it is one."""
    try:
        return Path(path)
    except TypeError as error:
        raise StateError(f"{path!r} is no path of a file: {error}") from error


def read(path: str | os.PathLike[str]) -> tuple[Groups, dict[str, Any]]:
    """Read a file that `write` made.

    Returns
    -------
    groups, facts
        A group that had no arrays is missing.

    Raises
    ------
    StateError
        The file is missing, damaged, or no checkpoint of graphgrad.
    """
    arrays, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise StateError(
            f"{path} is a safetensors file, but no checkpoint of graphgrad in the format {FORMAT}"
        )
    text = metadata.get("facts", "")
    if metadata.get("sha256") != _digest(arrays, text):
        raise StateError(f"{path} is damaged: its digest does not fit; use an older one")
    groups: Groups = {}
    for key, array in arrays.items():
        group, _, name = key.partition(_SEPARATOR)
        groups.setdefault(group, {})[name] = array
    facts = _parsed(path, text)
    if _EXTRA in groups:
        facts[_EXTRA] = facts.get(_EXTRA, {}) | groups.pop(_EXTRA)
    return groups, facts


def read_tensors(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of any safetensors file by name, and its metadata.

    Raises
    ------
    StateError
        The file is missing, damaged or no safetensors file.
    """
    path = _path(path)
    if not path.is_file():
        raise StateError(f"there is no file {path} to load")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return arrays, file.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is damaged, or no checkpoint nor safetensors file ({error}); use an older one"
        ) from error


def is_state_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that `write` made it, in any format; its digest is not checked."""
    if not _path(path).is_file():
        return False
    try:
        with safe_open(path, framework="numpy") as file:
            return str((file.metadata() or {}).get("format", "")).startswith(_FORMATS)
    except (SafetensorError, OSError):
        return False


def _parsed(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    """Facts, as JSON writes them, with some of the caller's own."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is damaged: its facts are no JSON ({error})") from error
    fault = misfit(facts, {f"{_EXTRA}?": is_object})
    if fault is not None:
        raise StateError(f"{path} holds facts that no step has written: {fault}; use an older one")
    return facts


def _digest(arrays: Mapping[str, np.ndarray], facts: str) -> str:
    """A digest of everything that a checkpoint holds."""
    # Sorted, because safetensors orders the tensors of a file as it likes.
    digest = hashlib.sha256(facts.encode())
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"\n{key} {array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_match(
    path: str | os.PathLike[str],
    groups: Groups,
    expected: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise unless a file's arrays are those of a model: same groups, names, shapes and dtypes.

    Of what is expected, arrays or types, only ``dtype`` and ``shape`` are looked at.

    Raises
    ------
    StateError
        Lists the first differences.
    """
    in_file = _types(groups)
    in_model = _types(expected)
    differences = [
        f"{key}: file has {in_file.get(key, 'nothing')}, model has {in_model.get(key, 'nothing')}"
        for key in sorted(in_file.keys() | in_model.keys())
        if in_file.get(key) != in_model.get(key)
    ]
    if differences:
        shown = "\n  ".join(differences[:5])
        raise StateError(
            f"{path} belongs to another model or optimizer; {len(differences)} difference(s):\n  "
            f"{shown}"
        )


def _types(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The dtype and shape of each array as text, by the key that it has in a file."""
    return {
        f"{group}{_SEPARATOR}{name}": f"{array.dtype}{list(array.shape)}"
        for group, members in groups.items()
        for name, array in members.items()
    }
