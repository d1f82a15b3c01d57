"""The manifest of an export: what its libraries take, and which machine they are for."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tvm

from ..ir.tensor import type_shape
from ..lower.cpu.features import used_features
from ..lower.cuda.compiler import arch_of, gives_ptx
from ..runtime.folder import FORMAT, MANIFEST, digest_of
from .forward import Forward
from .loss import LabelLoss, ValueLoss
from .recipe import Recipe


def described(made: Recipe) -> dict[str, Any]:
    """The facts of a manifest that are the same for all input shapes."""
    params, state = made.model.params, made.model.state
    loss_scale = made.owned.loss_scale
    is_cuda = str(made.target.kind.name) == "cuda"
    return {
        "target": json.loads(str(made.target)),
        "ptx": is_cuda and gives_ptx(arch_of(made.target)),
        "host": _host(made.target),
        "params": [_described(name, array.dtype, array.shape) for name, array in params.items()],
        "state": [_described(name, array.dtype, array.shape) for name, array in state.items()],
        "trained": made.wrt,
        "slots": [{"name": name, "fill": fill} for name, fill in made.optimizer.slots.items()],
        "outputs": made.model.outputs,
        "accumulate": made.accumulate,
        **({"loss_scale": loss_scale} if loss_scale else {}),
        "storage": {name: list(order) for name, order in made.layout.storage.items()},
    }


def describe_entry(
    made: Recipe, shapes: Mapping[str, tuple[int, ...]], forward: Forward
) -> dict[str, Any]:
    """The manifest's entry for one set of input shapes: the arguments of its library."""
    types = made.input_types
    return {
        "inputs": [_described(name, types[name].dtype, shapes[name]) for name in types],
        "targets": _targets(made, forward),
        "seeded": forward.seeded,
        "loss": forward.loss_dtype,
    }


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest of an export, with the digests of all files that are there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "tvm": tvm.__version__,
        **facts,
        "files": {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
        "sizes": {path.relative_to(folder).as_posix(): path.stat().st_size for path in files},
    }
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _described(name: str, dtype: Any, shape: Iterable[Any]) -> dict[str, Any]:
    """A tensor's type as JSON holds it; `runtime.library.types_by_name` reads it back."""
    return {"name": name, "dtype": str(dtype), "shape": [int(extent) for extent in shape]}


def _targets(recipe: Recipe, forward: Forward) -> dict[str, Any] | None:
    """The type of the targets, and which values they may have; None if the loss takes none."""
    if forward.targets is None:
        return None
    bounds, ignored = None, None
    loss = recipe.loss.named
    if isinstance(loss, LabelLoss):
        bounds, ignored = [0, type_shape(forward.outputs[0])[1] - 1], loss.ignore_index
    elif isinstance(loss, ValueLoss) and loss.within != (-math.inf, math.inf):
        bounds = list(loss.within)
    described = _described("targets", forward.targets.dtype, type_shape(forward.targets))
    return {**described, "range": bounds, "ignored": ignored}


def _host(target: tvm.target.Target) -> dict[str, Any]:
    """The processor that must call the kernels, and for llvm also runs them."""
    is_llvm = str(target.kind.name) == "llvm"
    # The attributes of a CUDA target describe the GPU, not the processor.
    attributes = target.attrs if is_llvm else {}
    triple = str(attributes.get("mtriple", ""))
    return {
        "system": platform.system(),
        "machine": triple.split("-", maxsplit=1)[0] or platform.machine(),
        "processor": str(attributes.get("mcpu", "")) or "generic",
        "flags": list(used_features(target).values()) if is_llvm else [],
    }
