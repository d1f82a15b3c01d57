"""Judging the gradient of a test of the ONNX standard as a file: in a runtime, beside our own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from judges import WRONG, Verdict, first_line
from node_case import (
    FLOATS,
    MISSING,
    NODES,
    REFUSED,
    cases,
    cotangent_of,
    imported,
    operator_of,
    refusal,
)
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors

import graphgrad as gg

AGREE, UNWRITTEN, ALONE = "agree", "unwritten", "alone"
STATUSES = (AGREE, UNWRITTEN, ALONE, REFUSED, MISSING, WRONG)

_TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
"""Largest distance of a gradient from another, to its norm; of half precision, 2e-2."""

_LACKS = (
    onnxruntime_errors.NotImplemented,
    onnxruntime_errors.InvalidGraph,
    onnxruntime_errors.Fail,
)
"""What onnxruntime raises at a file whose operators it has not, or not in a dtype."""

Arrays = Mapping[str, np.ndarray]


def judge_file(name: str, kind: str = NODES) -> Verdict:
    """Write the gradient of one test as a file, run that, and compare it with `value_and_grad`."""
    case = cases(kind)[name]
    reason = refusal(case)
    if reason:
        return Verdict(name, operator_of(case), REFUSED, reason)
    status, reason = REFUSED, "no float path"
    for model, arrays, obstacle in imported(case):
        if model is None:
            status, reason = MISSING, f"import: {obstacle}"
            continue
        inputs = dict(zip(model.inputs, arrays, strict=True))
        values = {**inputs, **model.params}
        wrt = [key for key, value in values.items() if str(value.dtype) in FLOATS]
        if not wrt:
            continue
        if not all(array.size for array in arrays):
            status, reason = REFUSED, "an empty input, which value_and_grad does not take"
            continue
        try:
            status, reason = _compared(model, inputs, wrt)
        except gg.NotDifferentiableError as error:
            status, reason = REFUSED, first_line(error)
        except gg.MissingGradientError as error:
            status, reason = MISSING, first_line(error, 1)
        else:
            break
    return Verdict(name, operator_of(case), status, reason)


def _compared(model: gg.Model, inputs: Arrays, wrt: list[str]) -> tuple[str, str]:
    f = gg.value_and_grad(model, wrt=wrt)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradient.onnx"
        try:
            proto = gg.gradient_to_onnx(model, path, wrt=wrt)
        except gg.ModelError as error:
            return UNWRITTEN, first_line(error, 1)
    generator = np.random.default_rng(0)
    read = {value.name for value in proto.graph.input}
    outputs, _ = f(inputs, {})
    cotangents = {
        name: cotangent_of(generator, array).astype(array.dtype)
        for name, array in outputs.items()
        if f"{name}.cotangent" in read
    }
    _, expected = f(inputs, cotangents)
    feeds = {**inputs, **{f"{name}.cotangent": ct for name, ct in cotangents.items()}}
    feeds = {name: array for name, array in feeds.items() if name in read}
    found, runtime = _run(proto, feeds)
    if found is None:
        return ALONE, runtime
    for name, gradient in expected.items():
        ours, theirs = (np.asarray(a, "float64") for a in (gradient, found[f"{name}.grad"]))
        tolerance = _TOLERANCES.get(str(gradient.dtype), 2e-2)
        if ours.shape != theirs.shape:
            return WRONG, f"{name}: {theirs.shape} in {runtime}, not {ours.shape}"
        both = np.isfinite(ours) & np.isfinite(theirs)
        distance = np.linalg.norm((ours - theirs)[both])
        same = np.array_equal(np.isnan(ours), np.isnan(theirs))
        if not same or distance > tolerance * max(np.linalg.norm(ours[both]), 1.0):
            return WRONG, f"{name} is {distance:.1e} away in {runtime}"
    return AGREE, runtime


def _run(proto: Any, feeds: Arrays) -> tuple[Arrays | None, str]:
    """Return the results of a file and what has computed them; or None and why nothing has."""
    names = [output.name for output in proto.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        return dict(zip(names, session.run(None, feeds), strict=True)), "onnxruntime"
    except _LACKS as error:
        reason = first_line(error)
    try:
        results = ReferenceEvaluator(proto).run(None, feeds)
    except Exception as error:  # of any type, from operators that it has not either
        return None, f"{reason}; reference: {first_line(error)}"
    return dict(zip(names, results, strict=True)), "onnx's reference"
