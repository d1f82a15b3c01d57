"""Judging one test of the ONNX standard: its import, its forward pass and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from judges import WRONG, Verdict, first_line
from onnx import helper, numpy_helper, version_converter
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.check.promote import promote_to_float64
from graphgrad.frontend.mode import is_seeded, specialize
from graphgrad.ir.arrays import to_tensor

SUPPORTED, REFUSED, MISSING = "supported", "refused", "missing"
STATUSES = (SUPPORTED, REFUSED, MISSING, WRONG)

NODES = "node"
SETS = (NODES, "pytorch-converted", "pytorch-operator", "simple")
"""The sets of tests of the standard: of single operators, and of small models in files."""

FLOATS = {"float16", "bfloat16", "float32", "float64"}

_QUANTIZED = {
    "ConvInteger",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}

_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}

_REFUSED = {
    "Bernoulli": "derivative zero",
    "Binarizer": "derivative zero",
    "MelWeightMatrix": "derivative zero",
    "TreeEnsemble": "derivative zero",
    "Range": "data-dependent shape",
}
"""What is not imported, or only in part, and would be refused."""

_JITTER = 0.04

_OLDEST_OPSET = 7
"""Older models are converted to it, as the importer asks for."""


@dataclass(frozen=True)
class StoredCase:
    """A test whose model and data are files; it has what a collected one has."""

    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list[onnx.TensorProto], list[onnx.TensorProto]]]
    rtol: float
    atol: float


@cache
def cases(kind: str = NODES) -> dict[str, Any]:
    """Return the tests of a set of the installed onnx by name."""
    if kind == NODES:
        return {case.name: case for case in collect_testcases()}
    return {case.name: _stored(case) for case in load_model_tests(kind=kind)}


def _stored(case: Any) -> StoredCase:
    folder = Path(case.model_dir)
    data = folder / "test_data_set_0"
    model = onnx.load(folder / "model.onnx")
    if any(used.version < _OLDEST_OPSET for used in model.opset_import if not used.domain):
        model = version_converter.convert_version(model, _OLDEST_OPSET)
    sides = [
        [onnx.load_tensor(data / f"{side}_{k}.pb") for k in range(len([*data.glob(f"{side}_*")]))]
        for side in ("input", "output")
    ]
    return StoredCase(case.name, model, [(sides[0], sides[1])], case.rtol, case.atol)


def judge(name: str, kind: str = NODES) -> Verdict:
    """Run one test: import it, compare its outputs, and check its gradients in float64."""
    case = cases(kind)[name]
    operator = operator_of(case)
    reason = refusal(case)
    if reason:
        return Verdict(name, operator, REFUSED, reason)
    try:
        status, reason = _checked(case)
    except gg.MissingGradientError as error:
        status, reason = MISSING, f"gradient: {first_line(error, 1)}"
    except gg.GradientMismatch as error:
        status, reason = WRONG, f"gradient: {first_line(error)}"
    return Verdict(name, operator, status, reason)


def operator_of(case: Any) -> str:
    """Return the operator that a test is of: that of its only node, or the test's own name."""
    nodes = case.model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else _named_operator(case)


def _named_operator(case: Any) -> str:
    """Return the operator of an expanded function: the node test of the same name has it."""
    plain = cases().get(case.name.split("_expanded")[0])
    if plain is None or plain is case:
        return "several"
    return str(plain.model.graph.node[0].op_type)


def refusal(case: Any) -> str:
    """Return why no gradient is asked for, by the closed list of the design; else nothing."""
    graph = case.model.graph
    types = [value.type for value in [*graph.input, *graph.output]]
    dtypes = {_dtype(ty) for ty in types}
    if dtypes - FLOATS - {"bool", *_integers()} or operator_of(case) in _QUANTIZED:
        return "quantized or string types"
    if not (_floats(graph.input) and _floats(graph.output)):
        return "no float path"
    return _REFUSED.get(operator_of(case), "")


def _integers() -> set[str]:
    return {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def _dtype(ty: Any) -> str:
    """Return the dtype of a tensor, or of those that a sequence or an optional value holds."""
    kind = ty.WhichOneof("value")
    if kind != "tensor_type":
        return _dtype(getattr(ty, kind).elem_type)
    elem_type = ty.tensor_type.elem_type
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def _floats(values: Any) -> list[str]:
    return [value.name for value in values if _dtype(value.type) in FLOATS]


def _checked(case: Any) -> tuple[str, str]:
    """Check a test with the fewest constants with which there is something to differentiate."""
    refused: tuple[str, str] | None = None
    obstacle = ""
    for model, inputs, reason in imported(case):
        if model is None:
            obstacle = obstacle or reason
            continue
        verdict = _checked_import(case, model, inputs)
        if verdict[0] != REFUSED:
            return verdict
        refused = refused or verdict
    return refused or (MISSING, f"import: {obstacle}")


def _checked_import(case: Any, model: Any, inputs: list[np.ndarray]) -> tuple[str, str]:
    module = specialize(model, None)
    if _depends_on_data(module):
        return REFUSED, "data-dependent shape"
    is_random = any(_draws(node) for node in case.model.graph.node)
    seeds = [np.int64(1)] * is_seeded(module)
    arrays = [*inputs, *model.params.values(), *model.state.values(), *seeds]
    try:
        executable = gg.compile(module)
    except Exception as error:
        return MISSING, f"lowering: {first_line(error)}"
    outputs = flat(relax.VirtualMachine(executable, tvm.cpu())["main"](*map(to_tensor, arrays)))
    if not is_random:
        difference = _difference(case, outputs)
        if difference:
            return WRONG, f"forward: {difference}"
    return _gradient(module, model, arrays)


def _depends_on_data(module: tvm.IRModule) -> bool:
    """Whether an output's shape is not a function of the shapes of the inputs."""
    main = module["main"]
    known = {v for p in main.params for v in relax.analysis.tir_vars_in_type(p.ty)}
    outputs = main.ret_ty.fields[0]
    if any(ty.shape is None for ty in outputs.fields):
        return True
    return not known >= set(relax.analysis.tir_vars_in_type(outputs))


def _draws(node: Any) -> bool:
    return node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)


def imported(case: Any) -> Iterator[tuple[Any, list[np.ndarray], str]]:
    """Import a test's model as it is, and with settings that it takes as inputs as constants.

    Sequences are imported with as many tensors as the test's data hold, and of their shapes. Yields
    the model and its inputs, or None and why it is not imported.
    """
    graph = case.model.graph
    given = map(array_of, case.data_sets[0][0])
    weights = {tensor.name for tensor in graph.initializer}  # older files list them among inputs
    inputs = [value for value in graph.input if value.name not in weights]
    arrays = dict(zip([value.name for value in inputs], given, strict=False))
    floats = _floats(inputs)
    sequences = {name: value for name, value in arrays.items() if isinstance(value, list)}
    shapes: dict[str, Any] = {n: [a.shape for a in value] for n, value in sequences.items()}
    if sequences:
        shapes = {n: value.shape for n, value in arrays.items() if n not in sequences} | shapes
    elements = {f"{n}[{k}]": a for n, value in sequences.items() for k, a in enumerate(value)}
    tensors = set(arrays) - set(sequences)
    integers = tensors - set(floats)
    for constants in (
        set(),
        integers,
        *(tensors - set(kept) for kept in (floats[:1], floats[-1:])),
    ):
        try:
            given_shapes = {n: shape for n, shape in shapes.items() if n not in constants}
            model = gg.from_onnx(
                _with_constants(case.model, arrays, constants), shapes=given_shapes
            )
        except gg.ModelError as error:
            yield None, [], " ".join(str(error).split())[:200]
            continue
        yield model, [{**arrays, **elements}[name] for name in model.inputs], ""


def array_of(value: Any) -> np.ndarray | list[np.ndarray]:
    """Return a value of a test's data; a list for a sequence. Some are given as ONNX tensors."""
    if isinstance(value, list):
        return [np.asarray(array_of(element)) for element in value]
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def _with_constants(model: Any, arrays: dict[str, Any], constants: set[str]) -> Any:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [value for value in copy.graph.input if value.name not in constants]
    nodes = list(copy.graph.node)
    del copy.graph.input[:], copy.graph.node[:]
    copy.graph.input.extend(kept)
    for name in sorted(constants):
        tensor = numpy_helper.from_array(arrays[name])
        copy.graph.node.append(helper.make_node("Constant", [], [name], value=tensor))
    copy.graph.node.extend(nodes)
    return copy


def _difference(case: Any, outputs: Sequence[np.ndarray]) -> str:
    """Return how the outputs differ from those that the standard gives; nothing if they agree."""
    given = [array_of(value) for value in case.data_sets[0][1]]
    expected = [a for value in given for a in (value if isinstance(value, list) else [value])]
    if any(isinstance(value, list) for value in given) and len(outputs) != len(expected):
        return f"there are {len(outputs)} tensors, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(outputs, expected, strict=False)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return (
                f"output {index} is {ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
            )
        coarse = str(theirs.dtype) in ("float16", "bfloat16")
        tolerance = 1e-2 if coarse else max(case.rtol, 1e-5)
        absolute = 1e-2 if coarse else max(case.atol, 1e-6)
        wide = [a.astype("float64") if str(a.dtype) in FLOATS else a for a in (ours, theirs)]
        if not np.allclose(*wide, rtol=tolerance, atol=absolute, equal_nan=True):
            worst = np.nanmax(np.abs(wide[0] - wide[1])) if wide[0].dtype != bool else "booleans"
            return f"output {index} differs by up to {worst}"
    return ""


def _gradient(module: Any, model: Any, arrays: list[np.ndarray]) -> tuple[str, str]:
    module, obstacles = promote_to_float64(module)
    if obstacles:
        return MISSING, f"promotion to float64: {obstacles[0]}"
    wide = [a.astype("float64") if str(a.dtype) in FLOATS else a for a in arrays]
    params = module["main"].params
    wrt = [p.name for p, a in zip(params, wide, strict=True) if a.dtype == np.float64]
    if not wrt:
        return REFUSED, "no float path"
    vjp = gg.vjp(module, wrt=wrt)
    try:
        machine = relax.VirtualMachine(gg.compile(vjp), tvm.cpu())
    except Exception as error:
        return MISSING, f"lowering of the gradient: {first_line(error)}"
    generator = np.random.default_rng(0)
    try:
        zero = _compare(machine, wide, generator)
        reason = ""
    except gg.GradientMismatch as error:
        moved = [_moved(a, generator) for a in wide]
        zero, reason = _compare(machine, moved, generator), f"at a kink: {first_line(error)}"
    return (REFUSED, "derivative zero") if zero else (SUPPORTED, reason)


def _moved(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if array.dtype != np.float64:
        return array
    return array + _JITTER * generator.uniform(0.5, 1.5, array.shape)


def _compare(machine: Any, arrays: list[np.ndarray], generator: np.random.Generator) -> bool:
    """Check the gradients at some values; return whether all of them are zero."""
    function = _float_outputs(machine)
    cotangents = [cotangent_of(generator, output) for output in function(*arrays)]
    tensors = [to_tensor(array) for array in [*arrays, *cotangents]]
    gradients = flat(machine["main_vjp"](*tensors)[1])
    compare_gradients(function, arrays, cotangents, gradients, generator, "main")
    return not any(gradient.any() for gradient in gradients)


def cotangent_of(generator: np.random.Generator, output: np.ndarray) -> np.ndarray:
    """Return a random cotangent; zero where the output is infinite, as that of a mask is."""
    return np.where(np.isfinite(output), generator.uniform(-1, 1, output.shape), 0.0)


def _float_outputs(machine: Any) -> Callable[..., list[np.ndarray]]:
    def function(*arrays: np.ndarray) -> list[np.ndarray]:
        outputs = flat(machine["main"](*map(to_tensor, arrays)))
        return [output for output in outputs if output.dtype == np.float64]

    return function


def names(match: Callable[[str], Any], kind: str = NODES) -> Iterator[str]:
    """Yield the names of the tests of a set whose name or operator matches."""
    return (name for name, case in cases(kind).items() if match(name) or match(operator_of(case)))
