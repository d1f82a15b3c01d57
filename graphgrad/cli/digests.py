"""Digests of the files that a run reads, by which a resumed run knows that they are the same."""

import hashlib
from importlib.abc import Traversable
from pathlib import Path

import onnx

from ..errors import ModelError
from ..frontend.onnx_load import external_files_of
from ..runtime.files import open_file
from ..train.data import DIGITS

_CHUNK_BYTES = 1 << 20


def file_digests(model: str | Path | onnx.ModelProto, data: str | None) -> dict[str, str]:
    """SHA-256 of the model, of its external data if it has any, and of the data, in hexadecimal.

    What cannot be read is left out: reading it for training says why.

    Parameters
    ----------
    model : path or ModelProto
    data : path or None
        None: the digits.
    """
    digests = {}
    try:
        if isinstance(model, onnx.ModelProto):
            digests["model"] = hashlib.sha256(model.SerializeToString()).hexdigest()
        else:
            digests["model"] = _of_files(Path(model))
            if external_files := external_files_of(Path(model)):
                digests["external data of the model"] = _of_files(*external_files)
        digests["data"] = _of_files(DIGITS if data is None else Path(data))
    except (OSError, ModelError):
        pass
    return digests


def _of_files(*files: Traversable) -> str:
    """SHA-256 of what some files hold, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        # A file of a user's may be a pipe, or a device without end.
        with open_file(path) if isinstance(path, Path) else path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
