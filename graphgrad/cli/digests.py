"""Digests of the files that a run reads, by which a resumed run knows that they are the same."""

import hashlib
from importlib.abc import Traversable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

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
            if external_files := _external_files(Path(model)):
                digests["external data of the model"] = _of_files(*external_files)
        digests["data"] = _of_files(DIGITS if data is None else Path(data))
    except (OSError, DecodeError):
        pass
    return digests


def _of_files(*files: Traversable) -> str:
    """SHA-256 of what some files hold, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _external_files(model: Path) -> list[Path]:
    """The files beside a model that hold some of its weights."""
    proto = onnx.load(model, format="protobuf", load_external_data=False)
    locations = {
        ExternalDataInfo(tensor).location
        for tensor in proto.graph.initializer
        if uses_external_data(tensor)
    }
    return [model.parent / location for location in sorted(locations)]
