"""The cases of `kernels.py` by group: a network's convolutions, or a family of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
from kernel_cases import Case, Convolution, Product

from graphgrad import models


def cases(groups: list[str]) -> dict[Case, list[str]]:
    """Return the cases of some groups, each with the groups that it belongs to."""
    found: dict[Case, list[str]] = {}
    for group in groups:
        for case in GROUPS[group]():
            found.setdefault(case, []).append(group)
    return found


def _network(chosen: Callable[[Convolution], bool] = lambda work: True, **told: Any) -> Any:
    return lambda: _of_network(chosen, **told)


def _of_network(
    chosen: Callable[[Convolution], bool], build: str, **options: Any
) -> Iterator[Case]:
    """Yield the distinct convolutions of a network and their gradients, as its file has them.

    The gradient of the network's own input is left out: no training computes it.
    """
    seen = set()
    for is_first, work in _convolutions(build, options):
        if work in seen or not chosen(work):
            continue
        seen.add(work)
        yield from (Case(work, part) for part in work.PARTS if not (is_first and part == "data"))


def _convolutions(build: str, options: Mapping[str, Any]) -> Iterator[tuple[bool, Convolution]]:
    """Yield the convolutions of a network in order, and whether each reads the network's input."""
    proto = getattr(models, build)(**options)
    graph = onnx.shape_inference.infer_shapes(proto).graph
    values = [*graph.input, *graph.value_info]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    weights = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Conv":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            batch, channels, size, _ = shapes[node.input[0]]
            outputs, _, kernel, _ = weights[node.input[1]]
            stride, padding = attributes["strides"][0], attributes["pads"][0]
            work = Convolution(
                batch, channels, size, outputs, kernel, stride, padding, attributes["group"]
            )
            yield node.input[0] == graph.input[0].name, work


def _sgemm() -> Iterator[Case]:
    for extent in (64, 100, 128, 256, 512, 513, 1000, 1024, 2048, 4096):
        for form in ("NN", "NT", "TN"):
            yield Case(Product(extent, extent, extent, form), "forward")


def _bert() -> Iterator[Case]:
    """Yield the products of BERT-base with weights, of 8 × 128 tokens, and of their gradients."""
    for inputs, outputs in ((768, 768), (768, 3072), (3072, 768)):
        yield Case(Product(1024, inputs, outputs, "NN"), "forward")
        yield Case(Product(1024, outputs, inputs, "NT"), "forward")
        yield Case(Product(inputs, 1024, outputs, "TN"), "forward")


def _derived() -> Iterator[Case]:
    """Yield gradients of contractions: convolutions, products, batches of them, linear layers."""
    for work in (
        Convolution(8, 64, 56, 64, 3, 1, 1),
        Convolution(8, 64, 56, 128, 3, 2, 1),
        Convolution(8, 64, 56, 128, 1, 2, 0),
        Convolution(8, 256, 14, 256, 3, 1, 1),
        Product(512, 512, 512),
        Product(128, 64, 128, batch=16),
        Product(256, 1024, 1024, "NT"),
    ):
        yield from (Case(work, part) for part in ("data", "weight"))


_CIFAR = {"stem": "cifar", "classes": 10, "batch": 32, "size": 32}
GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "resnet18": _network(build="resnet18", batch=8),
    "resnet18_32": _network(build="resnet18", **_CIFAR),
    "resnet50": _network(build="resnet50", batch=8),
    "resnet50_32": _network(build="resnet50", **_CIFAR),
    "vgg16": _network(build="vgg16_bn", batch=4, head="cifar"),
    "vgg16_32": _network(build="vgg16_bn", batch=32, head="cifar", size=32),
    "depthwise": _network(lambda work: work.groups > 1, build="mobilenet_v2", batch=8),
    "sgemm": _sgemm,
    "bert": _bert,
    "derived": _derived,
}
DEFAULT_GROUPS = [group for group in GROUPS if group not in ("resnet50_32", "bert")]
