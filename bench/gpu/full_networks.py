"""The networks whose training steps are planned, disassembled and predicted, at full width."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import tvm
from paths import ROOT
from timed import TIMED

import graphgrad as gg
from graphgrad.models import mobilenet_v2, resnet18, resnet50, transformer_encoder, vgg16_bn
from graphgrad.train.recipe import recipe

sys.path.insert(1, str(ROOT / "bench"))

IMAGE = (3, 224, 224)


@dataclass(frozen=True)
class Network:
    """A network and a batch of it.

    Attributes
    ----------
    proto : callable
        Makes its ONNX file.
    shape : tuple of int
        Of the input.
    """

    proto: Callable[[], onnx.ModelProto]
    shape: tuple[int, ...]

    def step(self, precision: str, arch: str) -> tvm.IRModule:
        """The module of a training step: forward, loss, backward, statistics, SGD with momentum."""
        target = {"kind": "cuda", "arch": arch}
        made = recipe(
            gg.from_onnx(self.proto()),
            "cross_entropy",
            gg.optim.SGD(0.1, momentum=0.9),
            None,
            target,
            0,
            "auto",
            precision=precision,
        )
        return made.step(made.forward([self.shape]))


def _by_torch(
    family: str, settings: Mapping[str, int], example: tuple[int, ...], words: int = 0
) -> Callable[[], onnx.ModelProto]:
    """What torch's exporter writes of a network of `torch_networks`; of tokens below `words`."""

    def proto() -> onnx.ModelProto:
        from torch_networks import proto_of  # noqa: PLC0415 (torch is needed for these alone)

        batch = np.zeros(example, "int64" if words else "float32")
        return proto_of(family, settings, batch)

    return proto


def _recurrent(loop: str) -> Callable[[], onnx.ModelProto]:
    """A language model of `loop_workloads`: two layers of 512, 16 sentences of 64 words."""

    def proto() -> onnx.ModelProto:
        from loop_workloads import LOOPS  # noqa: PLC0415 (its folder is found by now)

        return LOOPS[loop].language_model()

    return proto


def _encoder() -> onnx.ModelProto:
    from pack import onnx_file  # noqa: PLC0415 (as above)

    return onnx_file(TIMED["encoder-64"])


_BERT_BASE = {"layers": 12, "width": 768, "heads": 12, "feed_forward": 3072}
_GPT2 = {"length": 1024, "width": 768, "heads": 12, "layers": 12, "classes": 50257}
_VIT_B = {"size": 224, "patch": 16, "width": 768, "heads": 12, "layers": 12, "classes": 1000}
_UNET = {"channels": 32, "levels": 4, "classes": 8}

NETWORKS = {
    "resnet18-64": Network(lambda: resnet18(batch=64), (64, *IMAGE)),
    "resnet18-256": Network(lambda: resnet18(batch=256), (256, *IMAGE)),
    "resnet50-64": Network(lambda: resnet50(batch=64), (64, *IMAGE)),
    "resnet50-256": Network(lambda: resnet50(batch=256), (256, *IMAGE)),
    "vgg16-64": Network(lambda: vgg16_bn(batch=64), (64, *IMAGE)),
    "mobilenet_v2-64": Network(lambda: mobilenet_v2(batch=64), (64, *IMAGE)),
    "unet-16": Network(_by_torch("unet", _UNET, (16, 3, 256, 256)), (16, 3, 256, 256)),
    "bert-base-32": Network(
        lambda: transformer_encoder(**_BERT_BASE, sequence=384, batch=32), (32, 384, 768)
    ),
    "encoder-64": Network(_encoder, (64, TIMED["encoder-64"].sizes["length"])),
    "gpt2-4": Network(_by_torch("gpt", _GPT2, (4, 1024), _GPT2["classes"]), (4, 1024)),
    "lstm-16": Network(_recurrent("lstm"), (64, 16)),
    "gru-16": Network(_recurrent("gru"), (64, 16)),
    "vit-b-64": Network(_by_torch("vit", _VIT_B, (64, *IMAGE)), (64, *IMAGE)),
}
"""By a name that says the batch."""
