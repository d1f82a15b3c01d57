"""What the manifest of an export says, checked as a whole before anything in it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from .arrays import ALIGNMENT
from .json_form import (
    each,
    is_dtype,
    is_flag,
    is_natural,
    is_number,
    is_shape,
    is_text,
    misfit,
    or_none,
)
from .owned import Description

STATE, LOADER = "state.safetensors", "exported_step"
"""The names in an export of its state, and of this package."""

_GROUPS = ("params", "state", "window", "window_state", "accumulators", "loss_scale")
"""The names of groups of arrays that are no slots of an optimizer."""

_ARCH = re.compile(r"sm_[0-9]{2,}[a-z]?")

_TENSOR = {"name": is_text, "dtype": is_dtype, "shape": is_shape}


def _is_form(value: Any) -> bool:
    """Whether a value is a pair of a shape and a dtype."""
    return isinstance(value, list) and len(value) == 2 and is_shape(value[0]) and is_dtype(value[1])


def _is_place(value: Any) -> bool:
    """Whether a value is an offset, a shape and a dtype."""
    return isinstance(value, list) and all(map(is_natural, value[:1])) and _is_form(value[1:])


_RECORDED = {
    "workspace": {"bytes": is_natural, "tensors": [_is_place]},
    "returned": {"positions": [is_natural], "results": [_is_form], "overwritten": [is_natural]},
}

_ENTRY = {
    "library": is_text,
    "functions": {"step": is_text, "evaluate": is_text, "end_of_window?": is_text},
    "inputs": [_TENSOR],
    "targets": or_none(
        {**_TENSOR, "range": or_none([is_number]), "ignored": or_none(is_number)},
    ),
    "seeded": is_flag,
    # The first two formats have neither of these.
    "loss?": is_dtype,
    "recorded?": each(_RECORDED),
}

_MANIFEST = {
    "optimizer": is_text,
    "accumulate?": is_natural,
    "tvm": is_text,
    "target": {"kind": is_text, "arch?": is_text},
    "ptx?": is_flag,
    "host": {"system": is_text, "machine": is_text, "processor": is_text, "flags": [is_text]},
    "params": [_TENSOR],
    "state": [_TENSOR],
    "trained": [is_text],
    "slots": [{"name": is_text, "fill": is_number}],
    "outputs": [is_text],
    "storage?": each([is_natural]),  # the first format has none
    "loss_scale?": {"scale": is_number, "good_steps": is_natural},
    "entries": [_ENTRY],
    "files": each(is_text),
    "sizes?": each(is_natural),  # exports made before have none
}


def fault(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, in words; None if nothing is.

    It has all that is read of it, in the form in which it is read, and does not contradict itself.
    All files that are loaded are among those whose digests it names, and inside the folder.
    """
    return misfit(manifest, _MANIFEST) or next(_contradictions(manifest), None)


def _contradictions(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a manifest of the right form contradicts itself."""
    yield from _of_tensors(manifest)
    target = manifest["target"]
    if target["kind"] == "cuda" and not _ARCH.fullmatch(target.get("arch", "")):
        yield f"the arch of its target is {target.get('arch')!r}"
    entries, files = manifest["entries"], manifest["files"]
    accumulate = manifest.get("accumulate", 1)
    if not entries or not accumulate:
        yield "it has no entries, or steps of no micro-batches"
    for index, entry in enumerate(entries):
        inputs = _names_and_dtypes(entry)
        if inputs != _names_and_dtypes(entries[0]) or len(dict(inputs)) < len(inputs):
            yield f"entries[{index}] has an input twice, or other ones than the first entry"
        if ("end_of_window" in entry["functions"]) != (accumulate > 1):
            yield f"entries[{index}] is of a step of another number of micro-batches"
        bounds = (entry["targets"] or {}).get("range")
        if bounds is not None and len(bounds) != 2:
            yield f"entries[{index}].targets.range is {bounds}"
        yield from _of_recorded(f"entries[{index}].recorded", entry, manifest)
        if entry["library"] not in files:
            yield f"the library {entry['library']!r} is none of the files whose digests it has"
    for name in files:
        if not _is_inside(name):
            yield f"its file {name!r} is outside of the folder"


def _of_tensors(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield where what a manifest says of parameters and statistics contradicts itself."""
    shapes = {ty["name"]: ty["shape"] for ty in manifest["params"]}
    trained = manifest["trained"]
    names = [ty["name"] for ty in (*manifest["params"], *manifest["state"])]
    if len({*names}) < len(names) or len({*trained}) < len(trained):
        yield "a name stands for two tensors"
    if not shapes.keys() >= {*trained}:
        yield f"it has no parameters {sorted({*trained} - shapes.keys())}, which are trained"
    slots = [slot["name"] for slot in manifest["slots"]]
    if len({*slots, *_GROUPS}) < len(slots) + len(_GROUPS):
        yield f"its slots {slots} have no names of their own"
    for name, order in manifest.get("storage", {}).items():
        if name not in shapes or sorted(order) != list(range(len(shapes[name]))):
            yield f"{order} is no order of the axes of a parameter {name!r}"


def _of_recorded(
    where: str, entry: Mapping[str, Any], manifest: Mapping[str, Any]
) -> Iterator[str]:
    """Yield where what is said of functions that are recorded contradicts itself."""
    kind = manifest["target"]["kind"]
    for role, facts in entry.get("recorded", {}).items():
        if kind != "cuda" or role not in entry["functions"] or role == "evaluate":
            yield f"{where} has {role!r}, which cannot be recorded"
        workspace, returned = facts["workspace"], facts["returned"]
        for offset, shape, dtype in workspace["tensors"]:
            end = offset + math.prod(shape) * np.dtype(dtype).itemsize
            if end > workspace["bytes"] or offset % ALIGNMENT:
                yield f"{where}.{role} has a tensor outside of its workspace, or not aligned in it"
        positions, overwritten = returned["positions"], returned["overwritten"]
        if len(positions) != len(returned["results"]) or positions != sorted({*positions}):
            yield f"{where}.{role} returns {len(returned['results'])} results, as {positions}"
        if role == "step" and positions[:1] != [0]:
            yield f"{where}.{role} returns no loss"
        forms = _forms(role, entry, manifest)
        if len(positions) + len({*overwritten}) != len(forms):
            yield f"{where}.{role} neither returns nor overwrites some of its results"
        for position, form in zip(positions, returned["results"], strict=True):
            if position >= len(forms) or form != forms[position]:
                yield f"{where}.{role} returns {form} as result {position}"


def _forms(role: str, entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[Any]:
    """The shapes and dtypes of all results of a function that is recorded."""
    described = Description.of(manifest)
    is_part = role == "step" and manifest.get("accumulate", 1) > 1
    types = described.added() if is_part else described.replaced()
    loss: list[Any] = [[[], entry.get("loss")]] if role == "step" else []
    return [*loss, *([list(ty.shape), ty.dtype] for ty in types)]


def _names_and_dtypes(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The inputs of an entry, but for their shapes."""
    return [(ty["name"], ty["dtype"]) for ty in entry["inputs"]]


def _is_inside(name: str) -> bool:
    """Whether the name of a file, as an export writes it, stays in the folder, links aside."""
    path = PurePosixPath(name)
    is_plain = path.as_posix() == name and name != "." and not {*name} & {"\0", "\\", ":"}
    return is_plain and not path.is_absolute() and ".." not in path.parts
