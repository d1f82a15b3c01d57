"""Judging the gradient of a test of the ONNX standard as a file: in a runtime, beside our own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from judges import WRONG, Verdict, first_line
from node_case import (
    FLOATS,
    MISSING,
    NODES,
    REFUSED,
    array_of,
    cases,
    cotangent_of,
    imported,
    operator_of,
    refusal,
)
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors

import graphgrad as gg
from graphgrad.check.promote import promote_to_float64
from graphgrad.train.gradient_onnx import SEED

AGREE, REFERENCE, UNWRITTEN, ALONE = "agree", "reference", "unwritten", "alone"
STATUSES = (AGREE, REFERENCE, UNWRITTEN, ALONE, REFUSED, MISSING, WRONG)

_TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
"""Largest distance of a gradient from another, to its norm; of half precision, 2e-2."""

_NARROW = ("Erf",)
"""What onnx's reference computes in float32 alone."""

_LACKS = (
    onnxruntime_errors.NotImplemented,
    onnxruntime_errors.InvalidGraph,
    onnxruntime_errors.Fail,
)
"""What onnxruntime raises at a file whose operators it has not, or not in a dtype."""

Arrays = Mapping[str, np.ndarray]


def judge_file(name: str, kind: str = NODES, wide: bool = False) -> Verdict:
    """Write the gradient of one test as a file, run that, and compare it with `value_and_grad`.

    With `wide` the test's model is promoted to float64.
    """
    case = cases(kind)[name]
    reason = refusal(case)
    if reason:
        return Verdict(name, operator_of(case), REFUSED, reason)
    status, reason = REFUSED, "no float path"
    for original, given, problem in imported(case):
        if original is None:
            status, reason = MISSING, f"import: {problem}"
            continue
        model, arrays, obstacle = _promoted(original, given) if wide else (original, given, "")
        if obstacle:
            status, reason = REFUSED, f"promotion to float64: {obstacle}"
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
            status, reason = _compared(model, inputs, wrt, _outputs_of(case, model))
        except gg.NotDifferentiableError as error:
            status, reason = REFUSED, first_line(error)
        except gg.MissingGradientError as error:
            status, reason = MISSING, first_line(error, 1)
        else:
            break
    return Verdict(name, operator_of(case), status, reason)


def _promoted(model: gg.Model, arrays: list[np.ndarray]) -> tuple[gg.Model, list[Any], str]:
    """A model and its inputs in float64, and what of it stays in lower floats."""
    module, obstacles = promote_to_float64(model.mod)
    params, state = (
        {name: _widened(array) for name, array in values.items()}
        for values in (model.params, model.state)
    )
    promoted = gg.Model(module, params, state, outputs=model.outputs, frozen=model.frozen)
    return promoted, [*map(_widened, arrays)], next(iter(obstacles), "")


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype("float64") if str(array.dtype) in FLOATS else array


def _outputs_of(case: Any, model: gg.Model) -> Arrays:
    """The outputs that the standard gives, by name; those of sequences in their order."""
    given = [array_of(value) for value in case.data_sets[0][1]]
    arrays = [a for value in given for a in (value if isinstance(value, list) else [value])]
    return dict(zip(model.outputs, arrays, strict=False))


def _compared(model: gg.Model, inputs: Arrays, wrt: list[str], outputs: Arrays) -> tuple[str, str]:
    f = gg.value_and_grad(model, wrt=wrt)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradient.onnx"
        try:
            proto = gg.gradient_to_onnx(model, path, wrt=wrt)
        except gg.ModelError as error:
            return UNWRITTEN, first_line(error, 1)
    generator = np.random.default_rng(0)
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    cotangents = {
        name: cotangent_of(generator, array).astype(
            helper.tensor_dtype_to_np_dtype(types[f"{name}.cotangent"])
        )
        for name, array in outputs.items()
        if f"{name}.cotangent" in types
    }
    _, expected = f(inputs, cotangents)
    seed = {SEED: np.zeros((), "int64")}
    feeds = {**inputs, **seed, **{f"{name}.cotangent": ct for name, ct in cotangents.items()}}
    feeds = {name: array for name, array in feeds.items() if name in types}
    found, refusal = _run(proto, feeds)
    if found is None:
        return ALONE, refusal
    runtime = "onnx's reference" if refusal else "onnxruntime"
    for name, gradient in expected.items():
        ours, theirs = (np.asarray(a, "float64") for a in (gradient, found[f"{name}.grad"]))
        dtype = str(gradient.dtype)
        if refusal and any(node.op_type in _NARROW for node in proto.graph.node):
            dtype = "float32"
        tolerance = _TOLERANCES.get(dtype, 2e-2)
        if ours.shape != theirs.shape:
            return WRONG, f"{name}: {theirs.shape} in {runtime}, not {ours.shape}"
        both = np.isfinite(ours) & np.isfinite(theirs)
        distance = np.linalg.norm((ours - theirs)[both])
        same = np.array_equal(np.isnan(ours), np.isnan(theirs))
        if not same or distance > tolerance * max(np.linalg.norm(ours[both]), 1.0):
            return WRONG, f"{name} is {distance:.1e} away in {runtime}"
    return (REFERENCE, refusal) if refusal else (AGREE, "")


def _run(proto: Any, feeds: Arrays) -> tuple[Arrays | None, str]:
    """Return the results of a file, or None, and why onnxruntime has not computed them.

    Then onnx's reference has, or has not either, for which the reason is there, too.
    """
    try:
        onnx.checker.check_model(proto, full_check=True)
    except onnx.shape_inference.InferenceError as error:
        return None, f"types: {first_line(error)}"
    names = [output.name for output in proto.graph.output]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        return dict(zip(names, session.run(None, feeds), strict=True)), ""
    except _LACKS as error:
        reason = first_line(error)
    except RuntimeError as error:
        if "Numpy_type" not in str(error):
            raise
        reason = "onnxruntime in Python takes no bfloat16"
    try:
        results = ReferenceEvaluator(proto).run(None, feeds)
    except Exception as error:  # of any type, from operators that it has not either
        return None, f"{reason}; reference: {first_line(error)}"
    return dict(zip(names, results, strict=True)), reason
