"""Data sets, checkpoints and exports that are damaged or lie, and what reading one must come to."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import uuid
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from campaign import Case
from mutate import INTEGERS, TEXTS, chosen, json_text, mutate_bytes, mutate_json

import graphgrad as gg
from graphgrad import models
from graphgrad.runtime import ExportedStep, ExportedStepError, state_file
from graphgrad.runtime.folder import MANIFEST, digest_of
from graphgrad.runtime.manifest import LOADER, STATE
from graphgrad.train.data import load_npz

_SHAPE = (4, 6)
_DTYPES = ("<f4", "|O", "<i8", "<U9", "|S0", "|V0", "<c16", ">f2", "<M8[s]", "|V2", "|b1", "x", "")

_HEADERS = (
    "__import__('os').abort()",
    "{'descr': [('a', '<f4', (1,)), ('b', 'O')], 'fortran_order': False, 'shape': (2,)}",
    "{'descr': '<f4', 'fortran_order': 1, 'shape': [2]}",
    "{'descr': '<f4', 'fortran_order': False}",
    "[" * 9000,
    "-" * 9000 + "1",
    "",
)


def npz(case: Case, rng: np.random.Generator) -> None:
    """Read a data set that is damaged."""
    path = case.folder / "data.npz"
    path.write_bytes(_npz_bytes(rng))
    load_npz(path, targets=chosen(rng, ("labels", "values", None)))


def _npz_bytes(rng: np.random.Generator) -> bytes:
    arrays = {"x": rng.standard_normal((20, 6)).astype("float32"), "y": rng.integers(3, size=20)}
    if rng.random() < 0.3:
        arrays |= {"x_test": arrays["x"][:5], "y_test": arrays["y"][:5]}
    stream = io.BytesIO()
    if rng.random() < 0.4:
        chosen(rng, (np.savez, np.savez_compressed))(stream, **arrays)
        return mutate_bytes(rng, stream.getvalue(), stream.getvalue()[::-1])
    method = zipfile.ZIP_STORED if rng.random() < 0.5 else zipfile.ZIP_DEFLATED
    if rng.random() < 0.1:
        method = chosen(rng, (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, array in arrays.items():
            inner = io.BytesIO()
            np.lib.format.write_array(inner, array)
            content = inner.getvalue()
            if rng.random() < 0.4:
                content = _array_that_lies(rng, content)
            member = f"{name}.npy"
            if rng.random() < 0.05:
                member = chosen(rng, (*TEXTS[1:], "x", "x.npy/", "../x.npy"))
            archive.writestr(member.replace("\0", "") or "x", content)
    data = stream.getvalue()
    if rng.random() < 0.4:
        data = _directory_that_lies(rng, data)
    return _bomb(rng) if rng.random() < 0.02 else data


def _array_that_lies(rng: np.random.Generator, content: bytes) -> bytes:
    """An .npy file whose header says something else than what follows."""
    if rng.random() < 0.4:
        return mutate_bytes(rng, content)
    shape = tuple(chosen(rng, INTEGERS) for _ in range(int(rng.integers(0, 4))))
    header = f"{{'descr': {chosen(rng, _DTYPES)!r}, 'fortran_order': False, 'shape': {shape}}}"
    if rng.random() < 0.4:
        header = chosen(rng, _HEADERS)
    version = chosen(rng, (1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + content[128:]


def _directory_that_lies(rng: np.random.Generator, data: bytes) -> bytes:
    """An archive with one field of its directory, or of a member's own header, changed."""
    start = data.rfind(b"PK\x01\x02") if rng.random() < 0.6 else data.find(b"PK\x03\x04")
    offset = start + int(rng.integers(4, 46))
    value = struct.pack("<I", chosen(rng, INTEGERS) % 2**32)[: chosen(rng, (1, 2, 4))]
    return data[:offset] + value + data[offset + len(value) :]


def _bomb(rng: np.random.Generator) -> bytes:
    """A small archive that says it unpacks to gigabytes, and mostly does."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}" % (3 << 30)
    first = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header
    start = compressor.compress(first) + compressor.flush(zlib.Z_FULL_FLUSH)
    chunk = compressor.compress(bytes(1 << 22)) + compressor.flush(zlib.Z_FULL_FLUSH)
    content = start + chunk * int(rng.integers(1, 768)) + compressor.flush()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", content)
    data = bytearray(stream.getvalue())
    size = min(len(first) + (3 << 30), 2**32 - 1)
    for begin, method, extent in ((0, 8, 22), (data.rfind(b"PK\x01\x02"), 10, 24)):
        struct.pack_into("<H", data, begin + method, zipfile.ZIP_DEFLATED)
        struct.pack_into("<I", data, begin + extent, size)
    return bytes(data)


def checkpoint(case: Case, rng: np.random.Generator) -> None:
    """Load a checkpoint that is damaged; a step that refuses it is as it was before."""
    path = case.folder / "state.safetensors"
    export = _export(case)
    _damage_state(rng, export / STATE, path)
    step: Any = _train_step() if rng.random() < 0.5 else ExportedStep(export)
    before = _fingerprint(step)
    try:
        if rng.random() < 0.2:
            step = ExportedStep(export, weights=path)
        else:
            step.load(path)
    except (gg.errors.GraphGradError, ExportedStepError):
        if _fingerprint(step) != before:
            raise AssertionError("a step that refused a checkpoint has changed") from None
        raise
    step(np.ones(_SHAPE, "float32"), np.zeros(_SHAPE[0], "int64"))
    step.save(case.folder / "saved.safetensors")


def _fingerprint(step: Any) -> str:
    """A digest of all that a step would save."""
    digest = hashlib.sha256(f"{step.steps} {step.skipped} {step.learning_rate}".encode())
    arrays = {**step.params, **step.state} if hasattr(step, "params") else step._arrays("params")
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _damage_state(rng: np.random.Generator, source: Path, path: Path) -> None:
    data = source.read_bytes()
    match int(rng.integers(4)):
        case 0:
            path.write_bytes(mutate_bytes(rng, data))
        case 1:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length])
            for _ in range(int(rng.integers(1, 4))):
                header = mutate_json(rng, header) or {"a": 1}
            text = json_text(rng, header)
            declared = len(text) if rng.random() < 0.9 else chosen(rng, INTEGERS) % 2**64
            path.write_bytes(declared.to_bytes(8, "little") + text + data[8 + length :])
        case 2:
            groups, facts = state_file.read(source)
            for _ in range(int(rng.integers(1, 4))):
                facts = mutate_json(rng, facts) or {"a": 1}
            _write_state(path, groups, json_text(rng, facts).decode(errors="replace"))
        case _:
            groups, facts = state_file.read(source)
            _write_state(path, _other_arrays(rng, groups), json.dumps(facts))


def _other_arrays(rng: np.random.Generator, groups: state_file.Groups) -> state_file.Groups:
    group = chosen(rng, list(groups))
    name = chosen(rng, list(groups[group]))
    array = groups[group][name]
    match int(rng.integers(6)):
        case 0:
            del groups[group][name]
        case 1:
            groups[group][chosen(rng, TEXTS)] = array
        case 2:
            groups[chosen(rng, ("", "x", "window", "accumulators", "params/"))] = {name: array}
        case 3:
            groups[group][name] = array.astype(chosen(rng, ("f2", "f8", "i4", "u1", "?", "i8")))
        case 4:
            groups[group][name] = array[None] if rng.random() < 0.5 else array.reshape(-1)
        case _:
            groups[group][name] = np.full_like(array, np.nan)
    return groups


def _write_state(path: Path, groups: state_file.Groups, facts: str) -> None:
    """Write a state file with a digest that fits, whatever its facts are."""
    arrays = {f"{g}/{name}": a for g, members in groups.items() for name, a in members.items()}
    digest = state_file._digest(arrays, facts)
    metadata = {"format": state_file.FORMAT, "facts": facts, "sha256": digest}
    path.write_bytes(state_file.save(arrays, metadata=metadata))


def export(case: Case, rng: np.random.Generator) -> None:
    """Load an export that is damaged, rewritten, or reaches out of its folder; train on it."""
    folder = case.folder / "export"
    shutil.copytree(_export(case), folder)
    outside = case.folder / "outside.so"
    shutil.copy(next(folder.glob("*.so")), outside)
    damage = chosen(rng, (_rewrite_manifest, _rewrite_manifest, _damage_file, _reach_out))
    damage(rng, folder, outside)
    step = ExportedStep(folder)
    if damage is _reach_out and str(outside) in Path("/proc/self/maps").read_text("utf-8"):
        raise AssertionError("code was loaded from outside of the export")
    step(np.ones(_SHAPE, "float32"), np.zeros(_SHAPE[0], "int64"))
    step.evaluate(np.ones(_SHAPE, "float32"))
    step.save(case.folder / "saved.safetensors")


def _rewrite_manifest(rng: np.random.Generator, folder: Path, outside: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for _ in range(int(rng.integers(1, 4))):
        manifest = mutate_json(rng, manifest) or {"a": 1}
    _sign(rng, folder, manifest)


def _damage_file(rng: np.random.Generator, folder: Path, outside: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    inner = [path for path in files if path.parent.name != LOADER]
    path = chosen(rng, inner if rng.random() < 0.8 else files)
    data = path.read_bytes()
    match int(rng.integers(5)):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            os.mkfifo(path)
        case 2:
            path.unlink()
            path.mkdir()
        case 3 if path.name == STATE:
            path.unlink()
            _damage_state(rng, _good(folder) / STATE, path)
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            manifest["files"][STATE] = hashlib.sha256(path.read_bytes()).hexdigest()
            _sign(rng, folder, manifest)
        case _:
            path.write_bytes(mutate_bytes(rng, data))


def _reach_out(rng: np.random.Generator, folder: Path, outside: Path) -> None:
    """Let the manifest name a library that is outside of the folder, or behind a link."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    link = folder / "link.so"
    link.symlink_to(outside)
    (folder / "link").symlink_to("..")
    name = chosen(rng, (str(outside), "../outside.so", "link.so", "x/../../outside.so", "link/x"))
    entry = manifest["entries"][0]
    if rng.random() < 0.3:  # in the place of the library itself
        (folder / entry["library"]).unlink()
        (folder / entry["library"]).symlink_to(outside)
    else:
        entry["library"] = name
    if rng.random() < 0.5:
        manifest["files"][name] = hashlib.sha256(outside.read_bytes()).hexdigest()
    _sign(rng, folder, manifest)


def _sign(rng: np.random.Generator, folder: Path, manifest: Any) -> None:
    """Write a manifest, mostly with a digest that fits."""
    if isinstance(manifest, dict) and rng.random() < 0.9:
        manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_bytes(json_text(rng, manifest))


def _good(folder: Path) -> Path:
    return folder.parents[2] / "export"


def _export(case: Case) -> Path:
    """An export that is as it should be, made by the first case that needs it."""
    folder = case.folder.parents[1] / "export"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
        gg.export_step(_model(), unfinished, shapes={"input": _SHAPE})
        try:
            unfinished.rename(folder)
        except OSError:  # another worker was first
            shutil.rmtree(unfinished)
    return folder


@cache
def _train_step() -> Any:
    return gg.train_step(_model())


def _model() -> gg.Model:
    return gg.from_onnx(models.mlp((_SHAPE[1], 5, 3)))
