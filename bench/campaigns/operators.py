"""Single operators: do values follow onnxruntime, and gradients two independent oracles?

    python bench/campaigns/operators.py [--cases N] [--seed N] [--json] [...]

A case is a model of one node, drawn by `tests/frontend/operator_cases`: attributes, opsets, ranks,
dtypes, inputs that are left out or constant; one in five has extremes among its inputs. Its values
are compared with onnxruntime's (its float32 ones, or the standard's reference, where it has no
kernel of the dtype). Where there is a path of floats and all inputs are ordinary numbers, so are
the gradients of all float inputs, in the dtype of the case, with those that onnx-ad derives,
computed in float64. Where the two differ, or onnx-ad has no rule, central differences decide: in
float64 of onnxruntime, of the reference, or of graphgrad's own forward pass, or in float32. None
of these is asked whose values are not those of the case.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial

import ml_dtypes
import numpy as np
import onnx
import tvm
from adjoint import Adjoint
from campaign import Campaign, Case, Disagreement, NoOracle, main
from float64 import in_float64, make_inputs
from onnx import helper
from onnx.reference import ReferenceEvaluator
from random_nets import MENDED
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.check.compare import DEFAULT, Tolerances
from graphgrad.check.differences import FLOAT32, FLOAT64, Precision
from graphgrad.check.point import Differentiated, check_at
from graphgrad.check.promote import promote_to_float64
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor
from tests.frontend.operator_cases import FAMILIES, case, versions
from tests.frontend.operator_cases import Case as OperatorCase
from tests.frontend.operator_cases.draw import FLOATS, element_type
from tests.frontend.operator_cases.excluded import gradient_exclusion
from tests.frontend.operator_cases.extremes import with_extremes
from tests.frontend.operator_cases.forward import (
    EXCLUDED,
    TOLERANCES,
    WITH_FLOAT32,
    WRONG,
    Expected,
    expect,
    in_onnxruntime,
    judge_results,
    least_precision,
)

Arrays = list[np.ndarray]
Function = Callable[..., Arrays]

_EXTREMES = 0.2
"""The share of the cases that have extremes among their inputs."""

_OURS = "differences of graphgrad"
_IN_FLOAT32 = "differences in float32"

_BESIDE = "beside a kink"
_UNDEFINED = "finite differences give nan"
_MOVES = 3
"""How often a point is moved off a kink, as it may come upon another."""

_LARGEST = 1e4
"""Of the values among which gradients are asked for."""


@cache
def _versions() -> list[tuple[str, str, int, int]]:
    """Each version of each operator: domain, name, first and last opset."""
    keys = [key for family in FAMILIES.values() for key in family]
    return [(*key, since, until) for key in keys for since, until in versions(*key).items()]


def operator_case(drawn_by: Case) -> OperatorCase:
    """The operator case of a number; each version of each operator comes once in a round."""
    number, which = divmod(drawn_by.index, len(_versions()))
    chosen = case(drawn_by.seed, number, *_versions()[which])
    rng = drawn_by.rng()
    return with_extremes(chosen, rng) if rng.random() < _EXTREMES else chosen


def judge(drawn_by: Case) -> dict[str, int]:
    """Draw a case, and compare its values and gradients; by whose."""
    chosen = operator_case(drawn_by)
    onnx.save(chosen.model, drawn_by.folder / "model.onnx")
    np.savez(drawn_by.folder / "inputs.npz", **chosen.arrays)
    expected = expect(chosen)
    if expected.outputs is None:
        raise NoOracle(f"{chosen.operator}: {expected.reason}")
    subject = _Subject(chosen, expected.outputs)
    judgment = judge_results(chosen, expected, subject.values)
    if judgment.status == EXCLUDED:
        raise NoOracle(f"{chosen.operator}: {judgment.reason}")
    if judgment.status == WRONG:
        raise Disagreement(f"{chosen.operator} values: {judgment.reason}")
    if not subject.is_differentiated:
        return {f"values by {expected.oracle}": 1}
    oracle = _compare_gradients(subject, expected, drawn_by.rng())
    return {f"values by {expected.oracle}": 1, f"gradients by {oracle}": 1}


class _Subject:
    """What graphgrad computes of a case.

    Parameters
    ----------
    chosen : OperatorCase
    expected : list of arrays
        The values that it should have.

    Attributes
    ----------
    point : dict of arrays
        The float inputs and parameters; the latter are initializers of the file.
    values : list of arrays
        Of the program that computes gradients too, if these are asked for.
    """

    def __init__(self, chosen: OperatorCase, expected: Arrays):
        self.case = chosen
        self.model = gg.from_onnx(chosen.typed_model(expected))
        named = {**self._inputs(), **self.model.params}
        self.point = {n: array for n, array in named.items() if str(array.dtype) in FLOATS}
        self.wrt = list(self.point)
        arrays = [*chosen.arrays.values(), *expected]
        self.is_differentiated = (
            all(array.size > 0 for array in arrays)
            and all((np.abs(wide(array)) < _LARGEST).all() for array in arrays if _is_float(array))
            and bool(self.wrt)
            and any(map(_is_float, expected))
        )
        self.values = self._computed()

    @property
    def float_outputs(self) -> dict[str, np.ndarray]:
        """The values of floats by name."""
        pairs = zip(self.model.outputs, self.values, strict=True)
        return {name: array for name, array in pairs if _is_float(array)}

    @cached_property
    def _gradient(self) -> gg.ValueAndGrad:
        return gg.value_and_grad(self.model, wrt=self.wrt)

    def _computed(self) -> Arrays:
        if self.is_differentiated:
            # Where a shape depends on data, it asks for cotangents.
            with contextlib.suppress(gg.InputError):
                values, _ = self._gradient(self._inputs(), {})
                return [values[name] for name in self.model.outputs]
        arrays = [*self._inputs().values(), *self.model.params.values(), *self.model.state.values()]
        machine = relax.VirtualMachine(gg.compile(specialize(self.model, None)), tvm.cpu())
        return flat(machine["main"](*map(to_tensor, arrays)))

    def _inputs(self) -> dict[str, np.ndarray]:
        return {name: self.case.arrays[name] for name in self.model.inputs}

    def gradients(self, point: Arrays, cotangents: Arrays) -> Arrays:
        """The gradients at a point in float64, for cotangents of all float outputs."""
        moved = {
            name: array.astype(self.point[name].dtype)
            for name, array in zip(self.wrt, point, strict=True)
        }
        for name in set(moved) & set(self.model.params):
            self.model.params[name] = moved[name]
        inputs = {**self._inputs(), **{n: a for n, a in moved.items() if n in self.model.inputs}}
        seeds = {
            name: cotangent.astype(output.dtype)
            for (name, output), cotangent in zip(
                self.float_outputs.items(), cotangents, strict=True
            )
        }
        _, gradients = self._gradient(inputs, seeds)
        return [gradients[name] for name in self.wrt]


def _is_float(array: np.ndarray) -> bool:
    return str(array.dtype) in FLOATS


def wide(array: np.ndarray) -> np.ndarray:
    """An array in float64, if it is of floats."""
    return array.astype("float64") if _is_float(array) else array


def _compare_gradients(subject: _Subject, expected: Expected, rng: np.random.Generator) -> str:
    """Who confirms the gradients; raises `Disagreement` where nobody does."""
    point = [wide(array) for array in subject.point.values()]
    outputs = subject.float_outputs.values()
    cotangents = [rng.uniform(-1, 1, array.shape).astype(array.dtype) for array in outputs]
    ours = subject.gradients(point, cotangents)
    for name, gradient in zip(subject.wrt, ours, strict=True):
        like = subject.point[name]
        if gradient.shape != like.shape or gradient.dtype != like.dtype:
            raise Disagreement(f"{subject.case.operator} gradient: type of {name}")
    model = in_float64(_model_of_inputs(subject))
    dtypes = {str(array.dtype) for array in [*subject.point.values(), *outputs]}
    rtol = max(TOLERANCES[dtype] for dtype in dtypes)
    epsilon = max(float(ml_dtypes.finfo(dtype).eps) for dtype in dtypes)
    # A gradient that cancels is rounding errors of what it is the sum of: cotangents up to 1, and
    # what other gradients are of.
    largest = max(float(np.abs(wide(gradient)).max(initial=0)) for gradient in ours)
    least = max(1e-2, epsilon / rtol, 0.25 * largest)
    theirs = _by_onnx_ad(model, subject, point, [wide(ct) for ct in cotangents])
    if theirs is not None and all(map(partial(_are_close, rtol, least), ours, theirs)):
        return "onnx-ad"
    for oracle, function in _functions(model, subject, expected):
        is_exact = oracle != _IN_FLOAT32
        precision = FLOAT64 if is_exact else FLOAT32
        tolerances = Tolerances(rtol, rtol * least) if is_exact else DEFAULT
        reason = _by_differences(function, subject, point, rng, precision, tolerances)
        if _UNDEFINED in reason:
            raise NoOracle(f"{subject.case.operator}: a step of differences leaves what it is of")
        if oracle == _IN_FLOAT32 and _BESIDE in reason:
            raise NoOracle(f"{subject.case.operator}: differences in float32 are too coarse there")
        excluded = gradient_exclusion(subject.case) if reason else ""
        if excluded:
            raise NoOracle(f"{subject.case.operator}: {excluded}")
        if reason:
            of_onnx_ad = "no rule" if theirs is None else "differs"
            raise Disagreement(
                f"{subject.case.operator} gradient: {reason} [{oracle}; onnx-ad: {of_onnx_ad}]"
            )
        return oracle
    raise Disagreement(f"{subject.case.operator} gradient: no oracle")


def _are_close(rtol: float, least: float, ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether all elements agree, relative to the largest, or to `least` where all are smaller."""
    scale = max(np.abs(theirs).max(initial=0), least)
    return bool(((np.abs(wide(ours) - theirs) <= rtol * scale) | (ours == theirs)).all())


def _model_of_inputs(subject: _Subject) -> onnx.ModelProto:
    """The model with the shapes of its outputs, in which all that is differentiated is an input."""
    model = subject.case.typed_model(subject.values)
    for value, array in zip(model.graph.output, subject.values, strict=True):
        dtype = element_type(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, array.shape))
    return make_inputs(model, [name for name in subject.wrt if name in subject.model.params])


def _by_onnx_ad(
    model: onnx.ModelProto, subject: _Subject, point: Arrays, cotangents: Arrays
) -> Arrays | None:
    """The gradients that onnx-ad derives; None where it, or the reference, cannot."""
    inputs = {name: wide(array) for name, array in subject.case.arrays.items()}
    try:
        gradients = Adjoint(model, subject.wrt).gradients(
            inputs | dict(zip(subject.wrt, point, strict=True)),
            dict(zip(subject.float_outputs, cotangents, strict=True)),
        )
    except Exception:  # it raises what it comes upon
        return None
    return [gradients[name] for name in subject.wrt]


def _functions(
    model: onnx.ModelProto, subject: _Subject, expected: Expected
) -> Iterator[tuple[str, Function]]:
    """Functions from what is differentiated to the float outputs of the case.

    They compute in float64, but for the last, which is asked where an operator takes float32 alone.
    """
    others = {
        name: array for name, array in subject.case.arrays.items() if name not in subject.point
    }
    names = [value.name for value in model.graph.output]
    chosen = [names.index(name) for name in subject.float_outputs]

    def on_file(run: Callable[[dict[str, np.ndarray]], Arrays]) -> Function:
        def function(*point: np.ndarray) -> Arrays:
            inputs = others | dict(zip(subject.wrt, map(np.asarray, point), strict=True))
            try:
                results = run(inputs)
            except Exception as error:  # each kind of refusal has a type of its own
                raise NoOracle(f"{subject.case.operator}: refused beside the point") from error
            return [np.asarray(results[index]) for index in chosen]

        return function

    def in_float32() -> Function:
        narrow_model = _model_of_inputs(subject)
        try:
            run = on_file(in_onnxruntime(narrow_model))
        except Exception:  # it has no kernel
            run = on_file(_in_reference(narrow_model))
        dtypes = [array.dtype for array in subject.point.values()]

        def function(*point: np.ndarray) -> Arrays:
            narrow = [np.asarray(a, dtype) for a, dtype in zip(point, dtypes, strict=True)]
            return [wide(array) for array in run(*narrow)]

        return function

    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    is_wide = all(types[name] == onnx.TensorProto.DOUBLE for name in subject.wrt)
    has_float64 = is_wide and subject.case.operator not in WITH_FLOAT32
    on_wide: dict[str, Callable[[], Function]] = {
        "differences of onnxruntime": lambda: on_file(in_onnxruntime(model)),
        "differences of the reference": lambda: on_file(_in_reference(model)),
    }
    made: dict[str, Callable[[], Function]] = {
        **(on_wide if has_float64 else {}),
        _OURS: lambda: _promoted(subject, chosen),
        _IN_FLOAT32: in_float32,
    }
    start = [wide(array) for array in subject.point.values()]
    for oracle, make in made.items():
        try:
            function = make()
            values = function(*start)
        except Exception as error:  # each kind of refusal has a type of its own
            # Of graphgrad, any other is what the campaign looks for.
            if oracle == _OURS and not isinstance(error, gg.GraphGradError | NoOracle):
                raise
            continue
        outputs = list(subject.float_outputs.values())
        least = TOLERANCES.get(least_precision(subject.case, expected.oracle), 0.0)
        if all(
            v.dtype == np.float64
            and v.shape == output.shape
            and _are_close(max(TOLERANCES[str(output.dtype)], least), 1e-2, output, v)
            for v, output in zip(values, outputs, strict=True)
        ):
            yield oracle, function


def _in_reference(model: onnx.ModelProto) -> Callable[[dict[str, np.ndarray]], Arrays]:
    evaluator = ReferenceEvaluator(model, new_ops=MENDED)
    return lambda inputs: evaluator.run(None, inputs)


def _promoted(subject: _Subject, chosen: Sequence[int]) -> Function:
    """Graphgrad's own forward pass in float64."""
    module, obstacles = promote_to_float64(specialize(subject.model, None))
    if obstacles:
        raise NoOracle(f"{subject.case.operator}: {obstacles[0]}")
    machine = relax.VirtualMachine(gg.compile(module), tvm.cpu())
    model = subject.model
    named = {**subject.case.arrays, **model.params, **model.state}
    order = [*model.inputs, *model.params, *model.state]

    def function(*point: np.ndarray) -> Arrays:
        arguments = {**named, **dict(zip(subject.wrt, point, strict=True))}
        results = flat(machine["main"](*(to_tensor(wide(arguments[name])) for name in order)))
        return [results[index] for index in chosen]

    return function


def _by_differences(
    function: Function,
    subject: _Subject,
    point: Arrays,
    rng: np.random.Generator,
    precision: Precision,
    tolerances: Tolerances,
) -> str:
    """How the gradients differ from central differences; nothing if they agree."""

    def ours(at: Arrays, cotangents: Arrays) -> Arrays:
        return [wide(gradient) for gradient in subject.gradients(at, cotangents)]

    differentiated = Differentiated(function, ours, range(len(point)), subject.wrt, precision)
    reason = ""
    for _ in range(_MOVES):
        try:
            check_at(differentiated, point, rng, subject.case.name, tolerances)
        except gg.GradientMismatch as error:
            reason = str(error)
        else:
            return ""
        if _BESIDE not in reason:
            break
    return reason


OPERATORS = Campaign("operators", judge)


if __name__ == "__main__":
    os.environ.setdefault("GRAPHGRAD_CACHE", "0")  # no program comes twice
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    sys.exit(main(OPERATORS))
