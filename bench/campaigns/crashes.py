"""The campaign of crashes: whatever ends a writer, the old or the new is there, whole.

    python bench/campaigns/crashes.py --cases 2000 [--seed N] [--jobs N] [--tally FILE]

The pairs of checkpoints of a run, single files, folders that are put in place as exports are,
models with a file of weights, and entries of the cache are written in a copy of this process.
Nothing is compiled or trained. It is killed at an operation on files, is killed and loses what was
not flushed, or meets a full or failing disk from an operation on. What had been saved before must
be there then, or what was being saved, never a mixture; and the writer must be able to go on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import paths  # noqa: F401 (where the modules of `bench` are found)
from campaign import Campaign, Case, Disagreement, main
from faults import BAD_DISK, FAULTS, work_with_fault
from onnx import numpy_helper, parser

import graphgrad as gg
from graphgrad.cli.checkpoints import Checkpoints
from graphgrad.frontend import onnx_export
from graphgrad.lower.codegen.cache.store import Store
from graphgrad.runtime import files
from graphgrad.train import checkpoint
from graphgrad.train.run import History

_RUN = {"settings": {"lr": 0.1}, "digests": {"model": "12"}, "save_every": 1}
_CACHE_BYTES = 1 << 20


@dataclass(frozen=True)
class Writer:
    """A way of saving versions, which are numbers from 1, one over the other.

    Attributes
    ----------
    write : callable
        Save the versions from one number to another in a folder.
    read : callable
        The version in a folder; raises `Disagreement` if it is of none or of several.
    errors : tuple of types
        What may be raised where the disk is full or fails.
    is_durable : bool
        Whether a version that was saved survives a crash; of a cache it need not.
    operations : int
        Faults come at one of so many operations on files.
    """

    write: Callable[[Path, int, int], None]
    read: Callable[[Path], int]
    errors: tuple[type[Exception], ...] = (gg.errors.GraphGradError,)
    is_durable: bool = True
    operations: int = 40


def _values(version: int) -> np.ndarray:
    return np.full(50 * version, version, "float32")


def _version(values: np.ndarray) -> int:
    """The version that an array is of."""
    version = int(values[0])
    if not np.array_equal(values, _values(version)):
        raise Disagreement("what is read is a mixture of versions")
    return version


class _Step:
    """What of a training step a checkpoint takes."""

    def __init__(self, version: int):
        self.version = version

    def save(self, path: Path, extra: dict) -> None:
        weights = {"params": {"w": _values(self.version)}}
        checkpoint.write(path, weights, {"steps": self.version, "extra": extra})


def _write_checkpoints(folder: Path, first: int, last: int) -> None:
    checkpoints = Checkpoints(folder / "c.safetensors")
    if any(path.is_file() for path in checkpoints.files):
        checkpoints.read()  # as --resume does
    for version in range(first, last + 1):
        checkpoints.save(_Step(version), _RUN, History([float(version)] * version, [], 1.0))  # type: ignore[arg-type]


def _read_checkpoints(folder: Path) -> int:
    saved = Checkpoints(folder / "c.safetensors").read()
    groups, facts = checkpoint.read(saved.path)
    version = _version(groups["params"]["w"])
    if facts["steps"] != version or saved.history.losses != [float(version)] * version:
        raise Disagreement("the history is not of the parameters' version")
    return version


def _write_file(folder: Path, first: int, last: int) -> None:
    for version in range(first, last + 1):
        _Step(version).save(folder / "state.safetensors", {})


def _read_file(folder: Path) -> int:
    return _version(checkpoint.read(folder / "state.safetensors")[0]["params"]["w"])


def _write_folder(folder: Path, first: int, last: int) -> None:
    destination = folder / "export"
    for version in range(first, last + 1):
        files.recover_folder(destination)
        with files.unfinished(destination, ".exporting", is_folder=True) as new_folder:
            for name in ("step.so", "state"):
                with open(new_folder / name, "wb") as file:
                    file.write(_values(version).tobytes())
            files.put_folder(new_folder, destination)


def _read_folder(folder: Path) -> int:
    members = sorted((folder / "export").iterdir())
    contents = [path.read_bytes() for path in members]
    if [path.name for path in members] != ["state", "step.so"] or contents[0] != contents[1]:
        raise Disagreement("the files of an export are of several versions")
    if not contents[0] or len(contents[0]) % 4:
        raise Disagreement("a file of an export is cut")
    return _version(np.frombuffer(contents[0], "float32"))


def _write_cache(folder: Path, first: int, last: int) -> None:
    for version in range(first, last + 1):
        Store(folder / "cache", _CACHE_BYTES).write("a" * 64, _values(version).tobytes())


def _read_cache(folder: Path) -> int:
    content = Store(folder / "cache", _CACHE_BYTES).read("a" * 64)
    return 0 if content is None else _version(np.frombuffer(content, "float32"))


@cache
def _model() -> gg.Model:
    """A model of two weights."""
    proto = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        linear (float[N, 8] x) => (float[N, 8] y) {y = Gemm (x, w, b)}
        """
    )
    for name, shape in (("w", (8, 8)), ("b", (8,))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, "f4"), name))
    return gg.from_onnx(proto)


def _write_model(folder: Path, first: int, last: int) -> None:
    model = _model()
    limits = {"MAX_FILE_BYTES": 0, "_MAX_INLINE_BYTES": 0}  # so that weights have their own file
    with mock.patch.multiple(onnx_export, **limits):
        for version in range(first, last + 1):
            weights = {name: np.full_like(w, version) for name, w in model.params.items()}
            gg.to_onnx(model, weights, None, folder / "model.onnx")


def _read_model(folder: Path) -> int:
    weights = gg.from_onnx(folder / "model.onnx").params
    version = int(weights["w"][0, 0])
    if any(not (weight == version).all() for weight in weights.values()):
        raise Disagreement("the weights of a model are of several versions")
    return version


WRITERS = {
    "checkpoints": Writer(_write_checkpoints, _read_checkpoints),
    "file": Writer(_write_file, _read_file),
    "folder": Writer(_write_folder, _read_folder, errors=(OSError,)),
    "model": Writer(_write_model, _read_model),
    "cache": Writer(_write_cache, _read_cache, errors=(), is_durable=False),
}


def judge(case: Case) -> None:
    """Draw a writer, a fault and when it comes; judge what is there after it."""
    rng = case.rng()
    name = list(WRITERS)[int(rng.integers(len(WRITERS)))]
    judge_writer(WRITERS[name], FAULTS[int(rng.integers(len(FAULTS)))], case.folder, rng)


def judge_writer(writer: Writer, fault: str, folder: Path, rng: np.random.Generator) -> None:
    """Save versions until a fault, read what is there, and go on from it."""
    root, done = folder / "root", folder / "done"  # a byte for each version that was saved
    root.mkdir()
    before, last = int(rng.integers(1, 3)), 4
    writer.write(root, 1, before)
    at, half = int(rng.integers(writer.operations)), bool(rng.integers(2))

    def write() -> None:
        with contextlib.suppress(*writer.errors if fault in BAD_DISK else ()):
            for version in range(before + 1, last + 1):
                writer.write(root, version, version)
                with open(done, "ab") as file:
                    file.write(b".")

    code = work_with_fault(write, fault, root, folder, at=at, half=half, rng=rng)
    if code not in (0, -9):
        raise Disagreement(f"a writer raised an error that is not ours or of files: {fault}")
    saved = before + (done.stat().st_size if done.exists() else 0)
    try:
        version = writer.read(root)
    except (OSError, gg.errors.GraphGradError) as error:
        raise Disagreement(f"neither the old nor the new can be read: {fault}") from error
    if version > saved + 1 or (version < saved and writer.is_durable):
        raise Disagreement(f"an older version than was saved: {fault}")
    writer.write(root, last + 1, last + 1)
    if writer.read(root) != last + 1:
        raise Disagreement(f"the writer did not go on: {fault}")
    left = [path.name for path in root.rglob(".*")]
    if left and writer.is_durable:
        raise Disagreement(f"unfinished files are left: {fault}")


CRASHES = Campaign("crashes", judge)


if __name__ == "__main__":
    sys.exit(main(CRASHES))
