"""The models that `step.py` trains, and how their workloads are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from workload import Workload

from graphgrad.models import resnet18, resnet_digits


@dataclass(frozen=True)
class Spec:
    """A model of ``graphgrad.models`` and its data; `width` multiplies all channels."""

    build: Callable[..., onnx.ModelProto]
    batch: int
    channels: int
    size: int
    width: float
    classes: int = 10


SPECS = {
    "resnet_digits": Spec(resnet_digits, batch=64, channels=1, size=8, width=0.25),
    "resnet18_cifar": Spec(resnet18, batch=32, channels=3, size=32, width=1.0),
}


def write(spec: Spec, folder: Path) -> Workload:
    """Write a model with seeded weights and a random batch into a folder."""
    proto = spec.build(
        batch=spec.batch,
        channels=spec.channels,
        size=spec.size,
        width=spec.width,
        classes=spec.classes,
        stem="cifar",
    )
    onnx.save(proto, folder / "model.onnx")
    generator = np.random.default_rng(0)
    shape = (spec.batch, spec.channels, spec.size, spec.size)
    images = generator.standard_normal(shape, dtype=np.float32)
    labels = generator.integers(0, spec.classes, spec.batch)
    np.savez(folder / "batch.npz", images=images, labels=labels)
    return Workload(folder)
