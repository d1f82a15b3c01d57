"""ONNX model builders, written with `onnx.helper`, and the digits data set."""

from graphgrad.models.bert import bert
from graphgrad.models.gpt2 import gpt2
from graphgrad.models.lenet import lenet
from graphgrad.models.llama import llama
from graphgrad.models.mlp import mlp
from graphgrad.models.mobilenet import mobilenet_v2
from graphgrad.models.resnet import resnet18, resnet34, resnet50, resnet101, resnet_digits
from graphgrad.models.transformer import transformer_encoder
from graphgrad.models.vgg import vgg16_bn
from graphgrad.models.vit import vit

__all__ = [
    "bert",
    "gpt2",
    "lenet",
    "llama",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet_digits",
    "transformer_encoder",
    "vgg16_bn",
    "vit",
]
