"""Random networks: do values follow onnxruntime, and gradients an independent oracle?

    python bench/campaigns/networks.py [--cases N] [--seed N] [--json] [...]

A case is a network of `random_nets.py`. Outputs are compared with those of onnxruntime, in float32
as a user gets them; where they differ, the standard's reference decides. Gradients of inputs and
weights, for random cotangents, are compared with those that onnx-ad derives, computed in float64 by
the standard's reference. Where the two differ, or onnx-ad has no rule, central differences of the
reference decide. A network that is not smooth near its inputs is told by moving these a little:
where that moves the oracle's gradient as far as ours is from it, nothing can be said.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnx_ad
from adjoint import Adjoint, Arrays
from campaign import Campaign, Case, Disagreement, main
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from random_nets import MENDED, Net, random_net

import graphgrad as gg
from tests.frontend.operator_cases.forward import by_onnxruntime

_TOLERANCE = 2e-4  # of the largest element; float32 through some twenty layers
_MOST_WRT = 5
_JITTERS = 4
_JITTER = 1e-5
_STEPS = (1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Oracle:
    """A network in float64, whose weights are inputs.

    Parameters
    ----------
    model : ModelProto
    point, cotangents : dict of arrays
        Of all inputs and weights, and of all outputs.
    wrt : list of str
        What is differentiated.
    """

    model: onnx.ModelProto
    point: Arrays
    cotangents: Arrays
    wrt: Sequence[str]

    @cached_property
    def _forward(self) -> ReferenceEvaluator:
        return ReferenceEvaluator(self.model, new_ops=MENDED)

    @cached_property
    def _adjoint(self) -> Adjoint | None:
        with contextlib.suppress(onnx_ad.UnsupportedOperator):
            return Adjoint(self.model, self.wrt)
        return None

    def gradients(self, point: Arrays | None = None) -> dict[str, np.ndarray] | None:
        """The gradients that onnx-ad derives; None where it has no rule, or the reference fails."""
        if self._adjoint is None:
            return None
        try:
            return self._adjoint.gradients(point or self.point, self.cotangents)
        except ValueError:
            return None  # the reference's ConvTranspose knows few forms

    def slope(self, direction: Arrays, step: float) -> float:
        """The central difference of ⟨cotangents, outputs⟩ along a direction."""
        ends = []
        for sign in (1, -1):
            moved = {name: self.point[name] + sign * step * v for name, v in direction.items()}
            ends.append(self._forward.run(None, {**self.point, **moved}))
        pairs = zip(self.cotangents.values(), *ends, strict=True)
        return float(sum(np.sum(c * (high - low)) for c, high, low in pairs)) / (2 * step)


def judge(case: Case) -> None:
    """Make a network, and compare its values and gradients."""
    net = random_net(case.rng())
    model = net.model()
    onnx.save(model, case.folder / "model.onnx")
    inputs = {name: array.astype("float32") for name, array in net.inputs.items()}
    np.savez(case.folder / "inputs.npz", **inputs)
    if not model.graph.output or not inputs:
        return
    outputs = [value.name for value in model.graph.output]
    cotangents = {
        name: case.rng().standard_normal(net.shape(name)).astype("float32") for name in outputs
    }
    candidates = [*net.inputs, *net.weights]
    wrt = sorted(case.rng().permutation(candidates)[:_MOST_WRT].tolist())
    values, gradients = gg.value_and_grad(gg.from_onnx(model), wrt=wrt)(inputs, cotangents)
    _compare_values(values, net, model, inputs)
    point = {**net.inputs, **net.weights}
    oracle = Oracle(
        in_float64(net), point, {k: v.astype("float64") for k, v in cotangents.items()}, wrt
    )
    _compare_gradients(gradients, oracle, case.rng())


def in_float64(net: Net) -> onnx.ModelProto:
    """The network in float64; its weights are inputs."""
    model = net.model()
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    del graph.initializer[:]
    for name, array in net.tables.items():
        graph.initializer.append(numpy_helper.from_array(array, name))
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, stored[name].dims)
        for name in net.weights
    )
    for value in [*graph.input, *graph.output]:
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    return model


def _compare_values(values: Arrays, net: Net, model: onnx.ModelProto, inputs: Arrays) -> None:
    names = [value.name for value in model.graph.output]
    for name, theirs in zip(names, by_onnxruntime(model, inputs), strict=True):
        if min(distance(values[name], v) for v in (theirs, net.values[name])) > _TOLERANCE:
            raise Disagreement(f"values: {_operators(model)}")


def distance(ours: np.ndarray, theirs: np.ndarray, least: float = 1e-3) -> float:
    """The largest difference, relative to the largest element or what the least scale is."""
    if ours.shape != theirs.shape or not np.isfinite(ours).all():
        return np.inf
    return float(np.abs(ours - theirs).max(initial=0) / max(np.abs(theirs).max(initial=0), least))


def _compare_gradients(ours: Arrays, oracle: Oracle, rng: np.random.Generator) -> None:
    theirs = oracle.gradients()
    # A gradient that cancels is rounding errors of what it is the sum of.
    least = max(1e-3, *(0.05 * np.abs(ours[name]).max(initial=0) for name in oracle.wrt))
    for name in oracle.wrt:
        if theirs and distance(ours[name], theirs[name], least) <= _TOLERANCE:
            continue
        if not _is_confirmed(ours[name], name, oracle, least, rng) and not (
            theirs and _is_rough(ours[name], name, oracle, rng)
        ):
            raise Disagreement(f"gradients: {_operators(oracle.model)}")


def _is_confirmed(
    ours: np.ndarray, name: str, oracle: Oracle, least: float, rng: np.random.Generator
) -> bool:
    """Whether a central difference along a random direction, and along ours, agrees with ours."""
    size = np.abs(oracle.point[name]).max()
    for direction in (rng.standard_normal(ours.shape), ours / max(np.abs(ours).max(), 1e-30)):
        expected = float(np.sum(direction * ours))
        scale = np.linalg.norm(direction) * max(np.linalg.norm(ours), least)
        slopes = [oracle.slope({name: direction}, step * size) for step in _STEPS]
        if min(abs(slope - expected) for slope in slopes) > _TOLERANCE * scale:
            return False
    return True


def _is_rough(ours: np.ndarray, name: str, oracle: Oracle, rng: np.random.Generator) -> bool:
    """Whether moving the point a little moves the oracle's gradient as far as ours is from it."""
    theirs = oracle.gradients()[name]  # type: ignore[index]
    gap = np.abs(ours - theirs).max()
    for _ in range(_JITTERS):
        moved = {
            k: v * (1 + _JITTER * rng.standard_normal(v.shape)) for k, v in oracle.point.items()
        }
        if np.abs(oracle.gradients(moved)[name] - theirs).max() > gap / 2:
            return True
    return False


def _operators(model: onnx.ModelProto) -> str:
    return " ".join(sorted({node.op_type for node in model.graph.node}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(Campaign("networks", judge)))
