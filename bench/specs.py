"""The models that `step.py` trains, and how their workloads are written."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from workload import Workload

from graphgrad.models import (
    bert,
    gpt2,
    llama,
    mobilenet_v2,
    resnet18,
    resnet50,
    resnet_digits,
    transformer_encoder,
    vgg16_bn,
    vit,
)


@dataclass(frozen=True)
class Spec:
    """A network and its data.

    Attributes
    ----------
    build : callable
        Makes the ONNX file, given `batch`, `classes` and the settings.
    batch, classes : int
    settings : dict
    wide : tuple of str
        The settings that `width` multiplies: factors, or numbers of channels, which stay multiples
        of `multiple`.
    multiple : int
    width : float
    words : int
        Below which the inputs are whole numbers; 0 where they are images or embeddings.
    """

    build: Callable[..., onnx.ModelProto]
    batch: int
    settings: Mapping[str, Any]
    wide: tuple[str, ...] = ("width",)
    multiple: int = 1
    width: float = 1.0
    classes: int = 10
    words: int = 0

    def proto(self) -> onnx.ModelProto:
        """Return the model, with seeded weights."""
        scaled = {k: self._scaled(v) if k in self.wide else v for k, v in self.settings.items()}
        return self.build(batch=self.batch, classes=self.classes, **scaled)

    def _scaled(self, channels: Any) -> Any:
        """Return a factor times the width, or channels rounded to the multiple, not zero."""
        if isinstance(channels, tuple):
            return tuple(map(self._scaled, channels))
        if isinstance(channels, float):
            return channels * self.width
        return max(1, round(channels * self.width / self.multiple)) * self.multiple


def _images(
    build: Callable[..., onnx.ModelProto], batch: int, size: int, classes: int = 10, **options: Any
) -> Spec:
    """Return the spec of a convolutional network for color images."""
    settings = {"channels": 3, "size": size, "width": 1.0, **options}
    return Spec(build, batch, settings, classes=classes)


def exported(family: str, example: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return what makes the file of a network of `torch_networks`, by torch's exporter."""

    def build(batch: int, **settings: Any) -> onnx.ModelProto:
        networks = importlib.import_module("torch_networks")  # which needs torch
        return networks.proto_of(family, settings, np.zeros((batch, *example), dtype))

    return build


_VIT_B = {"size": 224, "patch": 16, "width": 768, "heads": 12, "layers": 12}
_GPT = {"length": 256, "width": 512, "heads": 8, "layers": 8}

SPECS: dict[str, Spec] = {
    "resnet_digits": Spec(
        resnet_digits, batch=64, settings={"channels": 1, "size": 8, "width": 1.0}, width=0.25
    ),
    "resnet18_cifar": _images(resnet18, batch=32, size=32, stem="cifar"),
    "vgg16_cifar": _images(vgg16_bn, batch=32, size=32, head="cifar"),
    "resnet18": _images(resnet18, batch=8, size=224, classes=1000),
    "resnet50": _images(resnet50, batch=4, size=224, classes=1000),
    "mobilenet_v2": _images(mobilenet_v2, batch=8, size=224, classes=1000),
    "transformer_encoder": Spec(
        transformer_encoder,
        batch=8,
        settings={"sequence": 128, "width": 256, "feed_forward": 1024, "heads": 8, "layers": 6},
        wide=("width", "feed_forward"),
        multiple=8,
    ),
    "vit_s": Spec(
        vit, batch=4, settings=_VIT_B | {"width": 384, "heads": 6}, multiple=6, classes=1000
    ),
    "vit_b": Spec(vit, batch=4, settings=_VIT_B, multiple=12, classes=1000),
    "bert": Spec(
        bert,
        batch=8,
        settings={
            "sequence": 128,
            "width": 768,
            "feed_forward": 3072,
            "heads": 12,
            "layers": 12,
            "words": 30522,
        },
        wide=("width", "feed_forward"),
        multiple=12,
        words=30522,
        classes=2,
    ),
    "gpt2": Spec(
        gpt2,
        batch=1,
        settings={"length": 256, "width": 768, "heads": 12, "layers": 12},
        multiple=12,
        words=50257,
        classes=50257,
    ),
    "llama": Spec(
        llama,
        batch=4,
        settings=_GPT | {"groups": 2, "feed_forward": 1408},
        wide=("width", "feed_forward"),
        multiple=16,
        words=8192,
        classes=8192,
    ),
}

_LONG = 1024
"""Positions of the models whose memory is compared."""

SPECS |= {
    f"{name}_long": replace(SPECS[name], batch=1, settings={**SPECS[name].settings, setting: _LONG})
    for name, setting in (("bert", "sequence"), ("gpt2", "length"), ("llama", "length"))
}

FAMILIES: dict[str, Spec] = {
    "gpt": Spec(
        exported("gpt", (256,), "int64"),
        batch=4,
        settings=_GPT,
        multiple=8,
        classes=8192,
        words=8192,
    ),
    "gpt_long": Spec(
        exported("gpt", (_LONG,), "int64"),
        batch=1,
        settings={**_GPT, "length": _LONG},
        multiple=8,
        classes=8192,
        words=8192,
    ),
    "unet": Spec(
        exported("unet", (3, 128, 128)),
        batch=2,
        settings={"channels": 32, "levels": 4},
        wide=("channels",),
        multiple=8,
    ),
    "convnext": Spec(
        exported("convnext", (3, 224, 224)),
        batch=4,
        settings={"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768)},
        wide=("widths",),
        classes=1000,
    ),
}
"""Of torch's exporter, which writes them where torch is installed."""

QUICK = ("resnet_digits", "resnet18_cifar")
"""What is trained unless the command line says otherwise; the others take minutes each."""


def write(spec: Spec, folder: Path) -> Workload:
    """Write a model with seeded weights and a random batch into a folder."""
    proto = spec.proto()
    onnx.save(proto, folder / "model.onnx")
    generator = np.random.default_rng(0)
    example, logits = (shape_of(value) for value in (proto.graph.input[0], proto.graph.output[0]))
    if spec.words:
        images = generator.integers(0, spec.words, example)
    else:
        images = generator.standard_normal(example, dtype=np.float32)
    labels = generator.integers(0, spec.classes, (logits[0], *logits[2:]))
    np.savez(folder / "batch.npz", images=images, labels=labels)
    return Workload(folder)


def shape_of(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the fixed shape of an input or output."""
    return tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
