"""Time of gradients as ONNX in onnxruntime: graphgrad's file, onnx-ad's, and one written by hand.

    python bench/onnx_gradient.py [--json] [--batch 8] [--width 1.0] [--threads 2] [--rounds 7]

By all weights of ResNet-18 for 32 × 32 images in inference form, which onnx-ad differentiates, too.
The gradients are compared before anything is timed. Milliseconds, medians; `ratio` is that to the
forward pass, of which a gradient needs three in contractions.
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
from hand_gradient import gradient_by_hand
from machine import facts, usable_cores, versions
from onnx import helper, numpy_helper
from table import table

import graphgrad as gg
from graphgrad.models import resnet18

GRADIENT_TOLERANCE = 1e-3
"""Largest distance of a gradient from another, to its norm."""

Arrays = dict[str, np.ndarray]


def measure(batch: int, width: float, threads: int, rounds: int) -> dict[str, Any]:
    """Return the times of a forward pass and of the gradients."""
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
    feeds = {"input": x, "logits.cotangent": cotangent}
    by_hand = gradient_by_hand(proto, list(model.params))
    runs = {
        "forward": Run(proto, {"input": x}, threads),
        "graphgrad": Run(ours, feeds, threads),
        "by_hand": Run(by_hand, feeds, threads),
        "onnx_ad": Run(theirs, _feeds(theirs, {"input": x, **weights}, cotangent), threads),
    }
    results = runs["graphgrad"].results()
    distance = max(
        _distance(results, runs["by_hand"].results(), model.params, "{}.grad"),
        _distance(results, runs["onnx_ad"].results(), model.params, "adj_{}"),
    )
    if not distance <= GRADIENT_TOLERANCE:
        raise SystemExit(f"gradients differ by {distance:.1e}, so times compare nothing")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run.milliseconds())
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: median / medians["forward"] for name, median in medians.items()}
    return {
        "ms": medians,
        "ratio": ratios,
        "distance": distance,
        "nodes": {name: len(run.proto.graph.node) for name, run in runs.items()},
        "megabytes": ours.ByteSize() / 1e6,
        "megabytes_of_weights": sum(array.nbytes for array in weights.values()) / 1e6,
    }


class Run:
    """A model in onnxruntime, and what it is fed."""

    def __init__(self, proto: onnx.ModelProto, feeds: Arrays, threads: int):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        self.proto, self._feeds = proto, feeds

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


def _distance(ours: Arrays, theirs: Arrays, weights: Any, named: str) -> float:
    """Return the largest distance of a weight's gradient from that of the other, to its norm."""
    norm = np.linalg.norm
    pairs = {name: (ours[f"{name}.grad"], theirs[named.format(name)]) for name in weights}
    return max(float(norm(a - b.reshape(a.shape)) / norm(a)) for a, b in pairs.values())


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
    rows = [
        [name, f"{ms:.1f}", f"{measured['ratio'][name]:.2f}", str(measured["nodes"][name])]
        for name, ms in measured["ms"].items()
    ]
    print(table(["", "ms", "ratio", "nodes"], rows))
    sizes = measured["megabytes"], measured["megabytes_of_weights"]
    print("graphgrad's file: {:.1f} MB, of which {:.1f} are weights".format(*sizes))


if __name__ == "__main__":
    main()
