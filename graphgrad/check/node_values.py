"""The values that the nodes of an ONNX file compute, compared with those of onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import ArgumentError, InputError, ModelError
from ..frontend.mode import is_seeded, specialize
from ..frontend.onnx_import import from_onnx
from ..frontend.onnx_load import load
from ..ir.tensor import is_float
from .machine import Machine
from .subject import of_model

_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""What rounding may add up to, by dtype: relative to an element plus the largest one."""


@dataclass(frozen=True)
class ValueCheck:
    """The comparison of one output of a node.

    Attributes
    ----------
    operator, node, output : str
        Of the ONNX file; a node without a name has that of its first output.
    dtype : str
        That of the file.
    error : float
        The largest difference, relative to the largest finite value.
    index : tuple of int or None
        The element that differs by most; None where there is none, or the types differ.
    ulps : float or None
        The difference there in units in the last place; None for integers, and if it is infinite.
    ours, theirs : number or None
        Of that element: graphgrad's, onnxruntime's.
    mismatch : str
        How the values differ; empty if they agree.
    """

    operator: str
    node: str
    output: str
    dtype: str
    error: float = 0.0
    index: tuple[int, ...] | None = None
    ulps: float | None = None
    ours: float | None = None
    theirs: float | None = None
    mismatch: str = ""

    def to_json(self) -> dict[str, Any]:
        """The facts as plain values; numbers that JSON does not know become None."""
        numbers = {name: getattr(self, name) for name in ("error", "ulps", "ours", "theirs")}
        return {
            "operator": self.operator,
            "node": self.node,
            "output": self.output,
            "dtype": self.dtype,
            "index": self.index,
            "mismatch": self.mismatch or None,
            **{
                name: number if number is not None and math.isfinite(number) else None
                for name, number in numbers.items()
            },
        }


def compare_with_onnxruntime(
    path_or_proto: str | os.PathLike[str] | onnx.ModelProto,
    inputs: Any = None,
    generator: np.random.Generator | None = None,
) -> Iterator[ValueCheck]:
    """Compare every tensor that the nodes of a file compute, in the order of the file.

    Both compute all of the model, so that what one node changes, those behind it show too: the
    first that differs is the one to look at. Of branches and loops the results are compared. What
    graphgrad does not compute, because no output depends on it, is left out.

    Parameters
    ----------
    path_or_proto : path or onnx.ModelProto
    inputs : arrays, optional
        As in a call of the model; random ones where none are given.
    generator : numpy.random.Generator, optional
        Draws them.

    Raises
    ------
    ArgumentError
        onnxruntime is not installed.
    ModelError
        The file is refused, by graphgrad or by onnxruntime.
    InputError
        The inputs do not fit the model, or its results are random.
    """
    runtime = _onnxruntime()
    proto = load(path_or_proto)
    model = from_onnx(proto)
    if is_seeded(specialize(model, training=None)):
        raise InputError(
            "the model has a dropout in training form: its values are random, and cannot be "
            "compared; export the model in inference form"
        )
    subject = of_model(model, inputs, generator or np.random.default_rng(0))
    arrays = dict(zip(model.inputs, subject.arrays, strict=False))
    nodes = {name: node for node in proto.graph.node for name in node.output if name}
    theirs = _run_onnxruntime(runtime, proto, nodes, arrays)
    ours = _run(proto, theirs, arrays)
    # A float64 that is computed from float32 has its digits: the coarsest dtype so far counts.
    tolerance = max((_tolerance(array) for array in arrays.values()), default=0.0)
    for name, value in theirs.items():
        tolerance = max(tolerance, _tolerance(value))
        if name in ours:
            yield _compared(nodes[name], name, ours[name], value, tolerance)


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ArgumentError(
            "a comparison with onnxruntime needs it: pip install 'graphgrad[onnxruntime]'"
        ) from error
    module: ModuleType = onnxruntime
    return module


def _run_onnxruntime(
    runtime: ModuleType,
    proto: onnx.ModelProto,
    nodes: Mapping[str, onnx.NodeProto],
    arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The tensors that the nodes compute in onnxruntime, by name."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    outputs = {output.name for output in whole.graph.output}
    whole.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in nodes if name not in outputs
    )
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    # What each node computes, not what a graph of others computes in its place.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = list(nodes)
    try:
        session = runtime.InferenceSession(
            whole.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        given = {value.name: arrays[value.name] for value in session.get_inputs()}
        values = session.run(names, given)
    except Exception as error:  # of types of onnxruntime's own, and of protobuf's beyond 2 GB
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"onnxruntime does not run the model: {reason[0] if reason else type(error).__name__}"
        ) from error
    pairs = zip(names, values, strict=True)
    # The rest are sequences, and optional values that there are none of.
    return {name: value for name, value in pairs if isinstance(value, np.ndarray)}


def _run(
    proto: onnx.ModelProto, like: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The tensors of the names and types of `like` that the model computes here, by name."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.graph.output[:]
    for name, value in like.items():
        if value.dtype.kind in "biufV":  # no strings; bfloat16 is of kind V
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            shape = [None] * value.ndim
            whole.graph.output.append(helper.make_tensor_value_info(name, dtype, shape))
    model = from_onnx(whole)
    subject = of_model(model, arrays, np.random.default_rng(0))
    results = Machine(subject.mod).call("main", subject.arrays)
    return dict(zip(model.outputs, results, strict=False))


def _tolerance(array: np.ndarray) -> float:
    """What rounding in the dtype of an array may add up to; nothing for integers."""
    return _TOLERANCES.get(str(array.dtype), 0.0)


def _compared(
    node: onnx.NodeProto, output: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float
) -> ValueCheck:
    """The comparison of two arrays; those of integers and booleans have to be equal."""
    name = node.name or next(filter(None, node.output))
    dtype = str(theirs.dtype)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        text = f"it is {ours.dtype}{ours.shape} in graphgrad, {dtype}{theirs.shape} in onnxruntime"
        return ValueCheck(node.op_type, name, output, dtype, math.inf, mismatch=text)
    a, b = ours.astype("float64"), theirs.astype("float64")
    # Not of a and b: integers beyond 2⁵³ are compared as what they are.
    same = (ours == theirs) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return ValueCheck(node.op_type, name, output, dtype, ulps=0.0 if is_float(dtype) else None)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max(initial=0.0))
    magnitude = np.where(np.isfinite(b), np.abs(b), 0.0)
    wrong = ~same
    if is_float(dtype):
        wrong &= ~(gap <= tolerance * (magnitude + scale))
    index = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
    error = float(gap[index] / scale) if scale else math.inf
    ulps = _ulps(dtype, float(gap[index]), float(magnitude[index])) if is_float(dtype) else None
    mine, other = ours[index].item(), theirs[index].item()
    text = ""
    if wrong.any():
        text = (
            f"at {index} graphgrad has {mine!r}, onnxruntime {other!r}; "
            f"{int(wrong.sum())} of {wrong.size} differ"
        )
    return ValueCheck(
        node.op_type, name, output, dtype, error, index, ulps, float(mine), float(other), text
    )


def _ulps(dtype: str, gap: float, magnitude: float) -> float | None:
    """A difference in units in the last place of the number that it is to; None if infinite."""
    if not math.isfinite(gap):
        return None
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype]
    smallest = {"float64": -1022, "float16": -14}.get(dtype, -126)
    return gap / math.ldexp(1.0, max(math.frexp(magnitude)[1] - 1, smallest) - bits)
