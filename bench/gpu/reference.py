"""References of the checks: data, what became of the network in float64, and torch's distances.

The file is safetensors, whose arrays are small enough at small width to be kept whole, so that any
wrong element is seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy import Batch, Trajectory
from safetensors import safe_open
from safetensors.numpy import save_file


@dataclass(frozen=True)
class Reference:
    """What a check needs.

    Attributes
    ----------
    batches : list of (inputs by name, labels)
        One for each step; floats are float32.
    weights : dict of str to array
        Parameters and statistics at the start, float32 (or integers).
    exact : Trajectory
        In float64.
    torch : dict of str to dict
        By precision, float32 or bfloat16 (autocast), the distances of torch's run on a CPU.
    facts : dict
        ``rate`` and ``momentum`` of SGD, the ``seed`` of the data, and what was cross-checked.
    """

    batches: list[Batch]
    weights: dict[str, np.ndarray]
    exact: Trajectory
    torch: dict[str, dict[str, float]]
    facts: dict[str, object]

    def distances_in(self, dtype: str) -> dict[str, float]:
        """Return torch's distances in a dtype or a precision, on a CPU.

        One rounds nothing to TF32. That has three more bits than bfloat16, whose errors are eight
        times as large.
        """
        if dtype == "tf32":
            return {kind: each / 8 for kind, each in self.torch["bfloat16"].items()}
        return self.torch["bfloat16" if dtype == "bfloat16" else "float32"]

    def save(self, path: Path) -> None:
        """Write the file."""
        arrays = {f"weights/{name}": array for name, array in self.weights.items()}
        for index, (inputs, labels) in enumerate(self.batches):
            arrays[f"labels/{index}"] = labels
            arrays |= {f"inputs/{index}/{name}": array for name, array in inputs.items()}
        for kind, changes in self.exact.changes.items():
            arrays |= {f"exact/{kind}/{name}": array for name, array in changes.items()}
        about = {
            "steps": len(self.batches),
            "inputs": list(self.batches[0][0]),
            "kinds": list(self.exact.changes),
            "losses": self.exact.losses,
            "torch": self.torch,
            "facts": self.facts,
        }
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(whole, path, {"about": json.dumps(about)})


def load(path: Path) -> Reference:
    """Read a reference."""
    with safe_open(path, "np") as file:
        about = json.loads(file.metadata()["about"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {
            name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)
        }

    batches = [
        ({name: arrays[f"inputs/{i}/{name}"] for name in about["inputs"]}, arrays[f"labels/{i}"])
        for i in range(about["steps"])
    ]
    changes = {kind: under(f"exact/{kind}/") for kind in about["kinds"]}
    exact = Trajectory(about["losses"], changes)
    return Reference(batches, under("weights/"), exact, about["torch"], about["facts"])


def stored_in(dtype: str) -> str:
    """Return the dtype of the weights where something is computed in a dtype or a precision."""
    return "float32" if dtype in ("tf32", "bfloat16") else dtype


def in_dtype(batches: list[Batch], dtype: str) -> list[Batch]:
    """Return batches with their floats in a dtype."""
    return [
        ({n: x.astype(dtype) if x.dtype.kind == "f" else x for n, x in inputs.items()}, labels)
        for inputs, labels in batches
    ]
