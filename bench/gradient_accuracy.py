"""How far the gradients of whole networks are from exact ones: ours, in both forms, and torch's.

    python bench/gradient_accuracy.py [--json] [--models resnet18,resnet18_silu] [--batches 3]

Freshly seeded residual networks in training form at full width, a loss, small batches. The gradient
in float64 is the reference; float32 is judged by the numeric policy:

- with everything on, the whole gradient is at most 4 times as far from the reference as torch's in
  float32, and as ours with convolutions in the direct form;
- in float64, each parameter's gradient is within 1e-8 of torch's.

Distances are norms. That of a parameter is relative to its gradient, or where that is nearly zero
to 1e-6 of the whole gradient. With ReLU a rounding error that moves one activation across zero
moves the whole gradient by up to some per cent, in every implementation, and it is chance in which
batch that happens: distances are root mean squares over the batches. The twins with SiLU have no
such jumps.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import repository  # noqa: F401  the tests can be imported from here on
from field import positive, say, some_of
from machine import facts, versions
from table import table

import graphgrad as gg
from graphgrad.models import resnet18, resnet50
from tests.promoted_models import promoted

Gradients = Mapping[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]

FACTOR = 4.0
EXACT = 1e-8
FLOOR = 1e-6
OURS, DIRECT, TORCH = "graphgrad", "graphgrad, direct", "torch"


@dataclass(frozen=True)
class Network:
    """A network of ``graphgrad.models``, and the batches that it is judged on."""

    build: Callable[..., onnx.ModelProto]
    batch: int
    size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    channels: int = 3
    classes: int = 10

    def proto(self) -> onnx.ModelProto:
        """Return the file, with seeded weights."""
        shape = {"batch": self.batch, "channels": self.channels, "size": self.size}
        return self.build(**shape, classes=self.classes, **self.options)

    def batches(self, count: int) -> list[Batch]:
        """Return seeded images and labels."""
        generator = np.random.default_rng(1)
        shape = (self.batch, self.channels, self.size, self.size)
        return [
            (
                generator.standard_normal(shape, dtype=np.float32),
                generator.integers(0, self.classes, self.batch),
            )
            for _ in range(count)
        ]


NETWORKS = {
    "resnet18": Network(resnet18, 8, 32, {"stem": "cifar"}),
    "resnet18_silu": Network(resnet18, 8, 32, {"stem": "cifar", "activation": "silu"}),
    "resnet50": Network(resnet50, 8, 64),
    "resnet50_silu": Network(resnet50, 8, 64, {"activation": "silu"}),
}


@dataclass(frozen=True)
class Distance:
    """How far some gradients are from the reference, over all batches.

    Attributes
    ----------
    whole : float
        Of the whole gradient, relative to its norm.
    median, worst : float
        Of the parameters.
    """

    whole: float
    median: float
    worst: float


def distance(given: Sequence[Gradients], reference: Sequence[Gradients]) -> Distance:
    """Return the distance of gradients, one set for each batch, from the reference."""
    wholes, parameters = [], []
    for ours, exact in zip(given, reference, strict=True):
        norms = {name: np.linalg.norm(array) for name, array in exact.items()}
        errors = {
            name: np.linalg.norm(ours[name].astype("float64") - array)
            for name, array in exact.items()
        }
        whole = _norm(norms.values())
        wholes.append(_norm(errors.values()) / whole)
        parameters.append([errors[n] / max(norms[n], FLOOR * whole) for n in norms])
    by_parameter = np.sqrt(np.mean(np.square(parameters), axis=0))
    root_mean_square = float(np.sqrt(np.mean(np.square(wholes))))
    return Distance(root_mean_square, float(np.median(by_parameter)), float(by_parameter.max()))


def _norm(values: Any) -> float:
    return float(np.sqrt(sum(float(value) ** 2 for value in values)))


def our_gradients(
    model: gg.Model, batches: Sequence[Batch], winograd: bool = True
) -> list[Gradients]:
    """Return the gradients of all parameters for each batch."""
    function = gg.value_and_grad(model, loss="cross_entropy", training=True, winograd=winograd)
    inputs = [{model.inputs[0]: images, "targets": labels} for images, labels in batches]
    return [function(given)[1] for given in inputs]


def judge(network: Network, count: int) -> dict[str, Any]:
    """Return the distances of all contenders for one network, and whether the policy is kept."""
    proto, batches = network.proto(), network.batches(count)
    model = gg.from_onnx(proto)
    say("  float64")
    wide = promoted(model)
    in_float64 = [(images.astype("float64"), labels) for images, labels in batches]
    reference = our_gradients(wide, in_float64, winograd=False)
    contenders: dict[str, Callable[[], list[Gradients]]] = {
        OURS: partial(our_gradients, model, batches),
        DIRECT: partial(our_gradients, model, batches, winograd=False),
    }
    exact = None
    if versions(["torch"])["torch"] is not None:
        theirs = importlib.import_module("torch_gradients").gradients
        names = list(reference[0])
        say("  torch, float64")
        exact = distance(theirs(proto, names, in_float64), reference)
        contenders[TORCH] = partial(theirs, proto, names, batches)
    distances = {}
    for name, gradients in contenders.items():
        say(f"  {name}")
        distances[name] = distance(gradients(), reference)
        gc.collect()
    return verdict(distances, exact)


def verdict(distances: Mapping[str, Distance], exact: Distance | None) -> dict[str, Any]:
    """Return distances and ratios, and whether they keep the numeric policy.

    Parameters
    ----------
    distances : mapping of str to Distance
        In float32, by contender.
    exact : Distance or None
        Torch's in float64, from our reference.
    """
    ratios = {
        name: distances[OURS].whole / others.whole
        for name, others in distances.items()
        if name != OURS
    }
    is_exact = exact is None or exact.worst <= EXACT
    return {
        "float32": {name: vars(each) for name, each in distances.items()},
        "ratio_to": ratios,
        "torch_float64": None if exact is None else vars(exact),
        "kept": is_exact and all(ratio <= FACTOR for ratio in ratios.values()),
    }


def main() -> None:
    arguments = _parser().parse_args()
    results = {}
    for name in arguments.models:
        say(name)
        results[name] = judge(NETWORKS[name], arguments.batches)
    if arguments.json:
        document = {"machine": facts(), "versions": versions(), "batches": arguments.batches}
        print(json.dumps({**document, "networks": results}, indent=1))
    else:
        print(text(results))
    if not all(result["kept"] for result in results.values()):
        raise SystemExit("the numeric policy is not kept")


def text(results: Mapping[str, Any]) -> str:
    """Return the results as a table."""
    rows = []
    for network, result in results.items():
        for name, each in result["float32"].items():
            ratio = result["ratio_to"].get(name)
            rows.append(_row(f"{network}, {name}", each, f"{ratio:.2f}" if ratio else ""))
        if result["torch_float64"] is not None:
            rows.append(_row(f"{network}, torch in float64", result["torch_float64"], ""))
    return table(["network, contender", "whole", "median", "worst", "ours / this"], rows)


def _row(label: str, each: Mapping[str, float], ratio: str) -> list[str]:
    return [label, *(f"{each[key]:.2e}" for key in ("whole", "median", "worst")), ratio]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--models", type=some_of(NETWORKS), default=list(NETWORKS), help=", ".join(NETWORKS))
    add("--batches", type=positive, default=3, help="for each network")
    return parser


if __name__ == "__main__":
    main()
