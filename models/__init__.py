"""ONNX model builders, written with `onnx.helper`, and the digits data set."""

from graphgrad.models.lenet import lenet
from graphgrad.models.mlp import mlp
from graphgrad.models.mobilenet import mobilenet_v2
from graphgrad.models.resnet import resnet18, resnet34, resnet50, resnet101, resnet_digits
from graphgrad.models.transformer import transformer_encoder
from graphgrad.models.vgg import vgg16_bn

__all__ = [
    "lenet",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet_digits",
    "transformer_encoder",
    "vgg16_bn",
]
