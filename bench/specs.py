"""The models that `step.py` trains, and how their workloads are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from workload import Workload

from graphgrad.models import mobilenet_v2, resnet18, resnet50, resnet_digits, vgg16_bn


@dataclass(frozen=True)
class Spec:
    """A model of ``graphgrad.models`` and its data; `width` multiplies all channels."""

    build: Callable[..., onnx.ModelProto]
    batch: int
    channels: int
    size: int
    width: float = 1.0
    classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)


SPECS = {
    "resnet_digits": Spec(resnet_digits, batch=64, channels=1, size=8, width=0.25),
    "resnet18_cifar": Spec(resnet18, batch=32, channels=3, size=32, options={"stem": "cifar"}),
    "vgg16_cifar": Spec(vgg16_bn, batch=32, channels=3, size=32, options={"head": "cifar"}),
    "resnet18": Spec(resnet18, batch=8, channels=3, size=224, classes=1000),
    "resnet50": Spec(resnet50, batch=4, channels=3, size=224, classes=1000),
    "mobilenet_v2": Spec(mobilenet_v2, batch=8, channels=3, size=224, classes=1000),
}

QUICK = ("resnet_digits", "resnet18_cifar")
"""What is trained unless the command line says otherwise; the others take minutes each."""


def write(spec: Spec, folder: Path) -> Workload:
    """Write a model with seeded weights and a random batch into a folder."""
    proto = spec.build(
        batch=spec.batch,
        channels=spec.channels,
        size=spec.size,
        width=spec.width,
        classes=spec.classes,
        **spec.options,
    )
    onnx.save(proto, folder / "model.onnx")
    generator = np.random.default_rng(0)
    shape = (spec.batch, spec.channels, spec.size, spec.size)
    images = generator.standard_normal(shape, dtype=np.float32)
    labels = generator.integers(0, spec.classes, spec.batch)
    np.savez(folder / "batch.npz", images=images, labels=labels)
    return Workload(folder)
