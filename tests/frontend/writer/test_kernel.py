"""Kernels as ONNX: onnxruntime computes what the kernels do, forward and backward.

With all rules left out gradients consist of derived kernels alone: those of every op's samples, by
``pytest -m slow tests/frontend/writer/test_kernel.py``.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.check.machine import UNOPTIMIZED, Machine
from graphgrad.check.samples import sample_inputs, sample_module
from graphgrad.frontend.writer import model_of_program
from graphgrad.ir.inline import inline_calls
from graphgrad.train.operators import in_operators
from tests.autodiff.test_if import Chosen
from tests.frontend.graphs import random
from tests.frontend.writer.test_ops import run
from tests.ops.test_scan import recurrence
from tests.registry.checkers import OF_RULE
from tests.running import function

QUICK = [
    "relax.matmul",  # contractions
    "relax.nn.conv2d",
    "relax.nn.softmax",
    "relax.nn.layer_norm",
    "relax.log1p",
    "relax.floor_mod",
    "relax.take",  # gathers and scatters
    "relax.scatter_nd",  # an order, and loops over updates
    "relax.max",  # extremes that hand NaN on, and their places
    "relax.cumprod",
    "relax.nn.pad",
    "relax.nn.adaptive_avg_pool2d",  # extents that are arguments
]


def fields_of(value, bindings):
    """Return the tensors of a nested tuple; bind those of a variable that is one."""
    if isinstance(value, relax.Tuple):
        return [field for part in value.fields for field in fields_of(part, bindings)]
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    variables = [relax.Var("field", ty) for ty in value.ty.fields]
    bindings += [(var, relax.TupleGetItem(value, n)) for n, var in enumerate(variables)]
    return [field for var in variables for field in fields_of(var, bindings)]


def as_onnx(mod, name):
    """Return a function of a module as ONNX; its results are those in nested tuples."""
    program = in_operators(inline_calls(mod, name))
    bindings = list(program.bindings)
    fields = fields_of(program.result, bindings)
    program = replace(program, bindings=bindings, result=relax.Tuple(fields))
    inputs, outputs = (
        [f"{side}{n}" for n in range(len(of))]
        for side, of in (("x", program.params), ("y", fields))
    )
    proto = model_of_program(program, inputs, outputs, {})
    onnx.checker.check_model(proto, full_check=True)
    return proto


def assert_gradient_follows(mod, arrays):
    """Compare outputs and gradients of a module in onnxruntime with the virtual machine's."""
    gradient = gg.vjp(mod, "main", rules="derived")
    proto = as_onnx(gradient, "main_vjp")
    outputs = Machine(mod, UNOPTIMIZED).call("main", arrays)
    generator = np.random.default_rng(1)
    floats = [y for y in outputs if y.dtype.kind == "f"]
    cotangents = [generator.standard_normal(y.shape).astype(y.dtype) for y in floats]
    expected = Machine(gradient, UNOPTIMIZED).call("main_vjp", [*arrays, *cotangents])
    given = run(proto, [*arrays, *cotangents])
    for theirs, ours in zip(given, expected, strict=True):
        assert theirs.shape == ours.shape
        np.testing.assert_allclose(theirs, ours, rtol=2e-4, atol=2e-5)
    return proto


def _case(op_name):
    return pytest.param(op_name, marks=() if op_name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("op_name", [*map(_case, OF_RULE)])
def test_gradients_without_rules(op_name):
    samples = [sample for _, sample in OF_RULE[op_name] if "const()" not in str(sample)]
    for sample in samples[: 1 if op_name in QUICK else 3]:
        mod = sample_module(op_name, sample, "main", "float32")
        arrays = sample_inputs(sample, np.random.default_rng(0), "float32")
        try:
            assert_gradient_follows(mod, arrays)
        except (gg.MissingGradientError, gg.NotDifferentiableError):
            pytest.skip("no gradient without rules")


def blurred(x, w):
    """A window that reads beyond the border, where there is nothing."""
    k = te.reduce_axis((0, w.shape[0]), "k")

    def element(n, i):
        at = i + k - 1
        inside = tirx.all(at >= 0, at < x.shape[1])
        return te.sum(tirx.if_then_else(inside, x[n, at], 0.0) * w[k], axis=k)

    return te.compute(x.shape, element, name="blurred")


def picked(x, index):
    """Elements that data point at, of which some are the same."""
    return te.compute(index.shape, lambda n: te.tanh(x[index[n], 0]) * x[n % 3, 1], name="picked")


def normalized(x):
    """Two stages, of which the second reads the first twice."""
    k = te.reduce_axis((0, x.shape[1]), "k")
    total = te.compute((x.shape[0],), lambda n: te.sum(te.exp(x[n, k]), axis=k), name="total")
    return te.compute(x.shape, lambda n, i: te.exp(x[n, i]) / total[n] + total[n], name="y")


def folded(x):
    """Quotients and remainders of negative numbers, and a permutation."""
    return te.compute(
        (x.shape[1], x.shape[0]),
        lambda i, n: (
            x[n, tirx.floormod(i - 3, x.shape[1])]
            * x[tirx.floordiv(n - 5, 5) + 1, i].astype("float32")
        ),
        name="folded",
    )


KERNELS = {
    "blurred": (blurred, [random(2, 5), random(3, seed=1)]),
    "picked": (picked, [random(4, 2), np.array([1, 3, 1, 0, 1], "int64")]),
    "normalized": (normalized, [random(3, 4)]),
    "folded": (folded, [random(4, 6)]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    kernel, arrays = KERNELS[name]
    types = [(array.shape, str(array.dtype)) for array in arrays]
    mod = function(lambda b, *params: b.emit_te(kernel, *params), *types)
    proto = assert_gradient_follows(mod, arrays)
    assert {node.domain for node in proto.graph.node} == {""}


def test_kernels_of_any_extent():
    n = tirx.Var("n", "int64")
    mod = function(lambda b, x: b.emit_te(normalized, x), ([n, 4], "float32"))
    for count in (1, 5):
        assert_gradient_follows(mod, [random(count, 4)])


@pytest.mark.parametrize(
    "extents", [(4, 2), (1, 2), ("t", "n")], ids=["static", "once", "time and batch"]
)
def test_loops_through_time(extents):
    steps, batch = (tirx.Var(e, "int64") if isinstance(e, str) else e for e in extents)
    shapes = (steps, batch, 3), (3, 3), (batch, 3)
    mod = function(recurrence, *((shape, "float32") for shape in shapes))
    count = 4 if extents[0] == "t" else extents[0]
    arrays = [random(count, 2, 3), random(3, 3, seed=1), random(2, 3, seed=2)]
    proto = assert_gradient_follows(mod, arrays)
    assert sum(node.op_type == "Loop" for node in proto.graph.node) >= 2


def test_a_kernel_that_is_not_written_is_named():
    def next_one(x):
        return te.compute(x.shape, lambda n: tirx.nextafter(x[n], x[n] + 1), name="next_one")

    mod = function(lambda b, x: b.emit_te(next_one, x), ((4,), "float32"))
    with pytest.raises(gg.ModelError, match=r"next_one.*\(tirx.nextafter\)"):
        as_onnx(gg.vjp(mod, "main", rules="derived"), "main_vjp")


@pytest.mark.parametrize("values", [[3.0, -1.0, 0.0, -0.0], [2.0**-149, -(2.0**-126), 1e38, -1e38]])
def test_extremes_of_any_sign_and_size(values):
    """Elements are compared by their bits, which are computed."""
    mod = function(lambda b, x: b.emit(relax.op.max(x, axis=[1])), ((4, 4), "float32"))
    square = np.array([np.roll(values, k) for k in range(4)], "float32")
    assert_gradient_follows(mod, [square])


def test_the_place_of_an_extreme_in_float64():
    """A reduction of pairs is a loop over them."""
    mod = function(lambda b, x: b.emit(relax.op.max(x, axis=[0, 2])), ((3, 2, 4), "float64"))
    assert_gradient_follows(mod, [random(3, 2, 4, dtype="float64")])


def test_reductions_by_any_combiner():
    def largest(x):
        def choose(a, b):
            is_left = tirx.any(a[0] > b[0], tirx.all(a[0] == b[0], a[1] < b[1]))
            return tirx.Select(is_left, a[0], b[0]), tirx.Select(is_left, a[1], b[1])

        def least(*dtypes):
            return tirx.min_value(dtypes[0]), tirx.const(-1, dtypes[1])

        reducer = te.comm_reducer(choose, least)
        k = te.reduce_axis((0, x.shape[1]), "k")
        return te.compute((x.shape[0],), lambda n: reducer((x[n, k], k), axis=k), name="largest")[0]

    mod = function(lambda b, x: b.emit_te(largest, x), ((3, 5), "float32"))
    assert_gradient_follows(mod, [random(3, 5)])


@pytest.mark.parametrize("flag", [True, False])
def test_branches(flag):
    mod = gg.vjp(Chosen, "main")
    arrays = [random(3, seed=n, dtype="float64") for n in range(3)]
    given = [*arrays, np.array(flag), random(3, seed=3, dtype="float64")]
    proto = as_onnx(mod, "main_vjp")
    assert any(node.op_type == "If" for node in proto.graph.node)
    expected = Machine(mod, UNOPTIMIZED).call("main_vjp", given)
    feeds = {f"x{n}": array for n, array in enumerate(given)}
    # onnxruntime has no Erf of float64.
    for theirs, ours in zip(ReferenceEvaluator(proto).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-6, atol=1e-8)
