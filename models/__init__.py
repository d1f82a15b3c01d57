"""ONNX model builders, written with `onnx.helper`, and the digits data set."""

from graphgrad.models.lenet import lenet
from graphgrad.models.mlp import mlp
from graphgrad.models.resnet import resnet18, resnet34, resnet50, resnet_digits

__all__ = ["lenet", "mlp", "resnet18", "resnet34", "resnet50", "resnet_digits"]
