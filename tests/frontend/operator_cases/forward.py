"""Judging the forward pass of cases by onnxruntime, and by the standard's reference beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor

from .case import Case
from .draw import FLOATS
from .excluded import exclusion, onnxruntime_departs

AGREES, REFUSED, NO_ORACLE, EXCLUDED, WRONG = "agrees", "refused", "no oracle", "excluded", "wrong"
STATUSES = (AGREES, REFUSED, NO_ORACLE, EXCLUDED, WRONG)

ONNXRUNTIME, REFERENCE = "onnxruntime", "onnx.reference"
IN_FLOAT32 = "onnxruntime in float32"
"""Whose results count."""

WITH_FLOAT32 = (
    *("Attention", "BatchNormalization", "DFT", "Gelu", "GroupNormalization", "Shrink", "STFT"),
)
"""Operators that onnxruntime, and some of them the standard's reference, computes in float32, or
with constants in it: those of the standard's definition, scales, momenta that a file leaves out, or
roots of unity."""

TOLERANCES = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Of each dtype, relative to an element and to the largest one, if that is below 1."""


_Imported = tuple[tvm.IRModule, list[np.ndarray]]
"""A module whose function main is a case's, and the arguments of that."""


@dataclass(frozen=True)
class Judgment:
    """What came of one case.

    Attributes
    ----------
    status : str
    reason : str
        Why it is refused, has no oracle or is excluded; how it differs if it is wrong.
    oracle : str
        Whose results count.
    """

    status: str
    reason: str = ""
    oracle: str = ""


@dataclass(frozen=True)
class Expected:
    """The results that a case should have, and who says so; a reason where nobody does."""

    outputs: list[np.ndarray] | None
    oracle: str = ""
    reason: str = ""


def judge(cases: Sequence[Case]) -> list[Judgment]:
    """The judgments on some cases, which are compiled together."""
    expected = [expect(case) for case in cases]
    results: list[Judgment | None] = [None] * len(cases)
    modules: dict[int, _Imported] = {}
    for index, (case, oracle) in enumerate(zip(cases, expected, strict=True)):
        if oracle.outputs is None:
            results[index] = Judgment(NO_ORACLE, oracle.reason)
            continue
        try:
            modules[index] = _imported(case, oracle.outputs)
        except gg.GraphGradError as error:
            results[index] = Judgment(REFUSED, _sentence(error), oracle.oracle)
    for index, ours in _computed(modules).items():
        results[index] = judge_results(cases[index], expected[index], ours)
    return [result for result in results if result is not None]


def judge_results(case: Case, expected: Expected, ours: list[np.ndarray] | str) -> Judgment:
    """The judgment on the results of a case, or on why there are none."""
    oracle = expected
    if oracle.oracle == REFERENCE:
        oracle = replace(oracle, outputs=_in_our_floats(ours, oracle.outputs))
    least = least_precision(case, oracle.oracle)
    difference = ours if isinstance(ours, str) else compare(ours, oracle.outputs or [], least)
    if not difference:
        return Judgment(AGREES, "", oracle.oracle)
    reason = exclusion(case, oracle.oracle)
    if reason:
        return Judgment(EXCLUDED, reason, oracle.oracle)
    return Judgment(WRONG, difference + _second_opinion(case, oracle, ours), oracle.oracle)


def least_precision(case: Case, oracle: str) -> str:
    """The dtype in which an oracle computes a case, if that may be smaller than the case's."""
    return "float32" if oracle != ONNXRUNTIME or case.operator in WITH_FLOAT32 else ""


def _in_our_floats(ours: Any, theirs: list[np.ndarray] | None) -> list[np.ndarray] | None:
    """Results of numpy's arithmetic, which mixes dtypes, with ours in their place."""
    if isinstance(ours, str) or theirs is None or len(ours) != len(theirs):
        return theirs
    pairs = zip(ours, theirs, strict=True)
    return [
        b.astype(a.dtype) if {str(a.dtype), str(b.dtype)} <= set(FLOATS) else b for a, b in pairs
    ]


def compare(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], precision: str = "") -> str:
    """How results differ from those expected; nothing if they agree.

    `precision` is a dtype whose tolerance is enough, if that of the results is smaller.
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} results, expected {len(theirs)}"
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        difference = _difference(a, b, TOLERANCES.get(precision, 0.0))
        if difference:
            return f"output {index} {difference}"
    return ""


def _difference(ours: np.ndarray, theirs: np.ndarray, least: float) -> str:
    """Where two arrays differ by most, if by more than the tolerance, which is at least `least`."""
    tolerance = TOLERANCES.get(str(theirs.dtype))
    if tolerance is None:
        wrong = ours != theirs
        size = wrong.astype(float)
    else:
        tolerance = max(tolerance, least)
        a, b = ours.astype("float64"), theirs.astype("float64")
        finite = np.abs(b[np.isfinite(b)])
        scale = min(float(finite.max(initial=0.0)), 1.0)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.abs(a - b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = ~same & ~(gap <= tolerance * (np.abs(b) + scale))
            size = np.where(wrong, np.nan_to_num(gap / (np.abs(b) + scale + 1e-300), nan=np.inf), 0)
    if not wrong.any():
        return ""
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(size), ours.shape))
    share = f"{int(wrong.sum())} of {wrong.size}"
    return f"at {worst} is {ours[worst]!s}, expected {theirs[worst]!s} ({share})"


def expect(case: Case) -> Expected:
    """The results of onnxruntime, in float32 where it has no kernel of the case's dtype.

    Where it refuses that too, or departs from the standard, those of the standard's reference.
    """
    oracles: list[tuple[str, Callable[[Case], list[np.ndarray]]]] = [
        (ONNXRUNTIME, lambda case: by_onnxruntime(case.model, case.arrays)),
        (IN_FLOAT32, _by_onnxruntime_in_float32),
        (REFERENCE, _by_reference),
    ]
    reason = ""
    for oracle, function in oracles[-1:] if onnxruntime_departs(case) else oracles:
        try:
            return Expected(function(case), oracle)
        except Exception as error:  # each kind of refusal has a type of its own
            reason = reason or _sentence(error)
    return Expected(None, "", reason)


def by_onnxruntime(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model in onnxruntime, each node as the file has it."""
    return in_onnxruntime(model)(arrays)


def in_onnxruntime(
    model: onnx.ModelProto,
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """A function that runs a model in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda arrays: [np.asarray(value) for value in session.run(None, dict(arrays))]


def _by_onnxruntime_in_float32(case: Case) -> list[np.ndarray]:
    """The results of the case with all floats in float32, in the dtypes that are inferred."""
    if not any(str(array.dtype) in FLOATS for array in case.arrays.values()):
        raise ValueError("there is nothing to narrow")
    if case.operator in ("Cast", "CastLike", "EyeLike"):  # they name a dtype themselves
        raise ValueError("the dtype is part of the case")
    narrow = case.in_float32()
    outputs = by_onnxruntime(narrow.model, narrow.arrays)
    inferred = onnx.shape_inference.infer_shapes(case.model).graph.output
    types = [value.type.tensor_type.elem_type for value in inferred]
    dtypes = map(onnx.helper.tensor_dtype_to_np_dtype, types)
    return [a.astype(dtype) for a, dtype in zip(outputs, dtypes, strict=True)]


def _by_reference(case: Case) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        outputs = ReferenceEvaluator(case.model).run(None, case.arrays)
    if any(isinstance(value, list) for value in outputs):
        raise ValueError("an output is a sequence")
    return [np.asarray(value) for value in outputs]


def _imported(case: Case, outputs: list[np.ndarray]) -> _Imported:
    """A case's function, and its arguments."""
    model = gg.from_onnx(case.typed_model(outputs))
    arguments = [case.arrays[name] for name in model.inputs]
    return specialize(model, None), [*arguments, *model.params.values(), *model.state.values()]


def _computed(modules: Mapping[int, _Imported]) -> dict[int, list[np.ndarray] | str]:
    """The results of functions, or why there are none."""
    joint = {index: item for index, item in modules.items() if len(item[0].functions) == 1}
    alone = [index for index in modules if index not in joint]
    results = _run(joint)
    for index in alone:  # its kernels might have the names of another's
        results |= _run({index: modules[index]})
    return results


def _run(modules: Mapping[int, _Imported]) -> dict[int, list[np.ndarray] | str]:
    """The results of functions that are compiled together; alone where one does not compile."""
    if not modules:
        return {}
    main = "main"
    if len(modules) == 1:
        ((module, _),) = modules.values()
    else:
        module = tvm.IRModule()
        for index, (single, _) in modules.items():
            module[f"case{index}"] = single[main].with_attr("global_symbol", f"case{index}")
    try:
        machine = relax.VirtualMachine(gg.compile(module), tvm.cpu())
    except Exception as error:
        if len(modules) == 1:
            return dict.fromkeys(modules, f"does not compile: {_sentence(error)}")
        indices = list(modules)
        halves = indices[: len(indices) // 2], indices[len(indices) // 2 :]
        first, second = (_run({index: modules[index] for index in half}) for half in halves)
        return first | second
    results: dict[int, list[np.ndarray] | str] = {}
    for index, (_, arrays) in modules.items():
        name = main if len(modules) == 1 else f"case{index}"
        try:
            results[index] = flat(machine[name](*map(to_tensor, arrays)))
        except Exception as error:
            results[index] = f"fails when it runs: {_sentence(error)}"
    return results


def _second_opinion(case: Case, expected: Expected, ours: Any) -> str:
    """What the standard's reference says of results that onnxruntime contradicts."""
    if expected.oracle != ONNXRUNTIME:
        return f" [by {expected.oracle}]"
    try:
        reference = _by_reference(case)
    except Exception as error:
        return f" [onnx.reference: {_sentence(error)}]"
    if not isinstance(ours, str) and not compare(ours, reference):
        return " [onnx.reference is with graphgrad]"
    if not compare(expected.outputs or [], reference):
        return " [onnx.reference is with onnxruntime]"
    return " [onnx.reference differs from both]"


def _sentence(error: Exception) -> str:
    """The message of an error in one line that is the same for equal reasons."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = (
        lines[0] if isinstance(error, gg.GraphGradError) and lines else lines[-1] if lines else ""
    )
    line = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", line)
    return (line or type(error).__name__)[:200]
