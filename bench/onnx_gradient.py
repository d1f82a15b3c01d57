"""Time of gradients as ONNX in onnxruntime: of graphgrad's file and of onnx-ad's, by all weights.

    python bench/onnx_gradient.py [--json] [--batch 8] [--width 1.0] [--threads 2] [--rounds 7]

ResNet-18 for 32 × 32 images in inference form, which both differentiate. The gradients are compared
before anything is timed. Milliseconds, medians; `ratio` is that to the forward pass, of which a
gradient needs three in contractions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ad
import onnxruntime
from field import positive
from machine import facts, usable_cores, versions
from onnx import helper, numpy_helper
from table import table

import graphgrad as gg
from graphgrad.models import resnet18

GRADIENT_TOLERANCE = 1e-3
"""Largest distance of a gradient from another, to its norm."""

Arrays = dict[str, np.ndarray]


def measure(batch: int, width: float, threads: int, rounds: int) -> dict[str, Any]:
    """Return the times of a forward pass and of both gradients."""
    proto = resnet18(stem="cifar", size=32, classes=10, width=width, training=False, batch=batch)
    model = gg.from_onnx(proto)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((batch, 3, 32, 32), "float32")
    cotangent = generator.standard_normal((batch, 10), "float32")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradient.onnx"
        ours = gg.gradient_to_onnx(model, path)
    theirs = onnx_ad.reverse(
        _by_weights(proto, model.params), list(model.params), prefix="adj_", layout="onnx"
    )
    runs = {
        "forward": Run(proto, {"input": x}, threads),
        "graphgrad": Run(ours, {"input": x, "logits.cotangent": cotangent}, threads),
        "onnx_ad": Run(theirs, _feeds(theirs, {"input": x, **weights}, cotangent), threads),
    }
    distance = _distance(runs["graphgrad"].results(), runs["onnx_ad"].results(), model.params)
    if not distance <= GRADIENT_TOLERANCE:
        raise SystemExit(f"gradients differ by {distance:.1e}, so times compare nothing")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run.milliseconds())
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: median / medians["forward"] for name, median in medians.items()}
    return {"ms": medians, "ratio": ratios, "distance": distance}


class Run:
    """A model in onnxruntime, and what it is fed."""

    def __init__(self, proto: onnx.ModelProto, feeds: Arrays, threads: int):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        self._feeds = feeds

    def results(self) -> Arrays:
        """Return all outputs by name."""
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, self._feeds), strict=True))

    def milliseconds(self) -> float:
        """Return how long a run takes."""
        start = time.perf_counter()
        self._session.run(None, self._feeds)
        return 1e3 * (time.perf_counter() - start)


def _by_weights(proto: onnx.ModelProto, weights: Any) -> onnx.ModelProto:
    """Return a model with weights as inputs, by which alone onnx-ad differentiates."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    del changed.graph.initializer[:]
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            changed.graph.input.append(value)
        else:
            changed.graph.initializer.append(tensor)
    return changed


def _feeds(proto: onnx.ModelProto, arrays: Arrays, cotangent: np.ndarray) -> Arrays:
    """Return the inputs of onnx-ad's model: besides arrays, one direction of the cotangent."""
    names = [value.name for value in proto.graph.input]
    return {name: arrays.get(name, cotangent[..., None]) for name in names}


def _distance(ours: Arrays, theirs: Arrays, weights: Any) -> float:
    """Return the largest distance of a weight's gradient from that of the other, to its norm."""
    return max(
        float(np.linalg.norm(ours[f"{name}.grad"] - theirs[f"adj_{name}"].reshape(array.shape)))
        / float(np.linalg.norm(ours[f"{name}.grad"]))
        for name, array in weights.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--batch", type=positive, default=8)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--threads", type=positive, default=usable_cores())
    parser.add_argument("--rounds", type=positive, default=7)
    settings = parser.parse_args()
    measured = measure(settings.batch, settings.width, settings.threads, settings.rounds)
    if settings.json:
        packages = versions(["graphgrad", "onnx-ad", "onnxruntime"])
        result = {"benchmark": "onnx_gradient", **vars(settings), **measured}
        print(json.dumps({**result, "machine": facts(), "versions": packages}))
        return
    rows = [[n, f"{ms:.1f}", f"{measured['ratio'][n]:.2f}"] for n, ms in measured["ms"].items()]
    print(table(["", "ms", "ratio"], rows))


if __name__ == "__main__":
    main()
