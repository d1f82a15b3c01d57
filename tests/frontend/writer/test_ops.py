"""Ops as ONNX: onnxruntime computes on every sample what the virtual machine computes.

What cannot be said is refused, and counted here, so that nothing is refused that was written.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.check.machine import UNOPTIMIZED, Machine
from graphgrad.check.samples import sample_inputs, sample_module
from graphgrad.frontend.writer import model_of_program
from graphgrad.frontend.writer.graph import OPSET, WRITERS
from graphgrad.ir.inline import inline_calls
from graphgrad.ir.tensor import Emitter
from graphgrad.ops.elementwise import ELEMENTWISE
from graphgrad.ops.many import all_finite, sum_of_squares
from graphgrad.ops.random import mask_call
from tests.peers import peer
from tests.registry.checkers import OF_RULE
from tests.running import function

REFUSED = {
    # In layouts or with reductions that ONNX has not, or where spatial extents are not known.
    "relax.nn.conv1d": 3,
    "relax.nn.conv2d": 5,
    "relax.nn.conv3d": 2,
    "relax.nn.conv1d_transpose": 2,
    "relax.nn.conv2d_transpose": 3,
    "relax.nn.conv3d_transpose": 2,
    "graphgrad.conv_data_gradient": 6,
    "graphgrad.conv_weight_gradient": 6,
    "graphgrad.avg_pool_gradient": 1,
    "relax.nn.avg_pool1d": 1,
    "relax.nn.max_pool1d": 1,
    "relax.nn.avg_pool2d": 3,
    "relax.nn.max_pool2d": 2,
    "relax.nn.avg_pool3d": 1,
    "relax.nn.max_pool3d": 1,
    "relax.nn.adaptive_avg_pool2d": 2,
    "relax.scatter_elements": 1,
    "relax.nn.pad": 9,
    "relax.split": 2,
    # The places of maxima are not those of a max_pool_index.
    "graphgrad.max_pool_scatter": 4,
    "graphgrad.max_pool_gather": 4,
}
"""How many samples of an op are refused."""

OUTSIDE = ("graphgrad.gather", "graphgrad.scatter_add")
"""Ops whose samples have indices that point outside, which onnxruntime refuses when it runs."""


def written(mod, opset=None):
    """Return a function of a module that returns one tensor, or a tuple, as an ONNX model."""
    program = inline_calls(mod, "main")
    result, ty = program.result, program.result.ty
    fields, bindings = [result], []
    if isinstance(ty, relax.TupleType):
        fields = [relax.Var("field", field) for field in ty.fields]
        bindings = [(var, relax.TupleGetItem(result, n)) for n, var in enumerate(fields)]
    program = replace(program, bindings=[*program.bindings, *bindings], result=relax.Tuple(fields))
    names = [f"x{number}" for number in range(len(program.params))]
    return model_of_program(program, names, [f"y{n}" for n in range(len(fields))], {}, opset)


def run(proto, arrays):
    ort = peer("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    feeds = {f"x{number}": np.asarray(array) for number, array in enumerate(arrays)}
    return session.run(None, feeds)


def has_one_dtype(sample):
    """Whether a sample can be run here: it has no constant of another dtype."""
    return "const()" not in str(sample)


CASES = {
    # Maps are one node, whatever the shapes are.
    op_name: [s for _, s in cases if has_one_dtype(s)][: 2 if op_name in ELEMENTWISE else None]
    for op_name, cases in OF_RULE.items()
    if op_name in WRITERS
}


@pytest.mark.parametrize("op_name", [name for name, samples in CASES.items() if samples])
def test_samples(op_name):
    state = peer("onnxruntime").capi.onnxruntime_pybind11_state
    refused, compared = Counter(), 0
    for sample in CASES[op_name]:
        mod = sample_module(op_name, sample, "main", "float32")
        arrays = sample_inputs(sample, np.random.default_rng(0), "float32")
        try:
            proto = written(mod)
        except gg.ModelError as error:
            assert op_name in str(error)
            refused[op_name] += 1
            continue
        onnx.checker.check_model(proto, full_check=True)
        try:
            given = run(proto, arrays)
        except (state.InvalidArgument, state.Fail) as error:
            assert op_name in OUTSIDE, error
            continue
        expected = Machine(mod, UNOPTIMIZED).call("main", arrays)
        for ours, theirs in zip(expected, given, strict=True):
            assert (theirs.shape, theirs.dtype) == (ours.shape, ours.dtype)
            np.testing.assert_allclose(theirs, ours, rtol=2e-4, atol=2e-5)
        compared += 1
    assert refused[op_name] == REFUSED.get(op_name, 0)
    assert compared or len(CASES[op_name]) == refused[op_name]


F32 = "float32"
op = relax.op
X = np.array([[1.5, -2.0, 0.0], [np.inf, np.nan, -0.5]], F32)

MAPS = {
    "comparisons": lambda x: op.where(
        op.logical_and(op.less(x, op.abs(x)), op.logical_not(op.equal(x, x))), x, op.floor(x)
    ),
    "bounds": lambda x: op.where(op.less_equal(x, op.ceil(x)), op.sign(x), op.negative(x)),
    "kinds": lambda x: op.where(
        op.isnan(x), op.zeros_like(x), op.where(op.isinf(x), x, op.ones_like(x))
    ),
    "finite": lambda x: op.where(op.logical_or(op.isfinite(x), op.greater(x, x)), x, op.square(x)),
    "rounded": lambda x: op.where(op.not_equal(x, x), op.round(x), op.rsqrt(op.abs(x))),
    "cast": lambda x: op.astype(op.greater_equal(x, op.sigmoid(x)), F32),
    "clipped": lambda x: op.clip(op.tanh(x), -0.5, 0.25),
}


@pytest.mark.parametrize("name", MAPS)
def test_ops_without_samples(name):
    mod = function(lambda b, x: b.emit(MAPS[name](x)), (X.shape, F32))
    expected = Machine(mod, UNOPTIMIZED).call("main", [X])[0]
    np.testing.assert_allclose(run(written(mod), [X])[0], expected, rtol=1e-5)


N = np.array([[3, 0, 3, -7], [5, 5, 0, 1]], "int64")
INTEGERS = {
    "first of equals": lambda x: op.argmax(x, axis=1, keepdims=True),
    "of all": op.argmin,
    "and": lambda x: op.bitwise_and(x, op.bitwise_not(relax.const(4, "int64"))),
    "or, xor": lambda x: op.bitwise_xor(op.bitwise_or(x, relax.const(2, "int64")), x),
    "of booleans": lambda x: op.bitwise_not(op.greater(x, relax.const(3, "int64"))),
    "remainders": lambda x: op.subtract(
        op.floor_mod(x, relax.const(4, "int64")), op.mod(x, relax.const(4, "int64"))
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    mod = function(lambda b, x: b.emit(INTEGERS[name](x)), (N.shape, "int64"))
    expected = Machine(mod, UNOPTIMIZED).call("main", [N])[0]
    np.testing.assert_array_equal(run(written(mod), [N])[0], expected)


def test_extents_that_data_decide():
    def places(builder, x):
        count = tirx.Var("count", "int64")
        found = builder.match_cast(
            builder.emit(op.nonzero(x)), relax.TensorType([2, count], "int64")
        )
        return builder.emit(op.add(found, op.ones(relax.ShapeExpr([2, count]), "int64")))

    mod = function(places, (N.shape, "int64"))
    np.testing.assert_array_equal(run(written(mod), [N])[0], np.array(np.nonzero(N)) + 1)


@pytest.mark.parametrize("seed", [0, 3 << 32 | 7, 2**63 - 1, -1, -(2**33) - 5])
def test_masks_of_dropouts_are_ours_bit_for_bit(seed):
    def mask(builder, x, seed):
        return builder.emit(mask_call(x, seed, 0.25, 3))

    mod = function(mask, ((50, 41), F32), ((), "int64"))
    arrays = [np.ones((50, 41), F32), np.array(seed, "int64")]
    expected = Machine(mod, UNOPTIMIZED).call("main", arrays)[0]
    np.testing.assert_array_equal(run(written(mod), arrays)[0], expected)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -0.0])
def test_finiteness_and_squares_of_many(value):
    x, y = np.full((3, 2), 3e38, F32), np.zeros(4, "float64")
    x[1, 1] = value
    types = (x.shape, F32), (y.shape, "float64")
    emit = {
        "finite": lambda b, *tensors: all_finite([*map(Emitter(b).lift, tensors)]).expr,
        "squares": lambda b, *tensors: sum_of_squares([*map(Emitter(b).lift, tensors)]).expr,
    }
    is_finite, squares = (run(written(function(emit[name], *types)), [x, y])[0] for name in emit)
    assert is_finite == np.isfinite(value)
    np.testing.assert_allclose(squares, np.sum(x.astype("float64") ** 2), rtol=1e-12)


def test_a_choice_of_a_whole_tensor_keeps_its_bits():
    mod = function(
        lambda b, c, x, y: b.emit(op.where(c, x, y)), ((), "bool"), ((64,), F32), ((64,), F32)
    )
    x, y = np.full(64, -0.0, F32), np.full(64, np.nan, F32)
    for condition, expected in ((True, x), (False, y)):
        (chosen,) = run(written(mod), [np.array(condition), x, y])
        assert chosen.tobytes() == expected.tobytes()


def test_symbolic_extents_are_read_off_the_inputs():
    mod = sample_module(
        "relax.nn.batch_flatten", OF_RULE["relax.nn.batch_flatten"][1][1], "main", F32
    )
    proto = written(mod)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    for count in (1, 4):
        x = np.ones((count, 3, 2), F32)
        assert run(proto, [x])[0].shape == (count, 6)


@pytest.mark.parametrize("opset", [OPSET, 18, 21])
def test_versions(opset):
    mod = function(lambda b, x: b.emit(op.max(op.sum(x, axis=[0]), axis=[0])), ((2, 3), F32))
    proto = written(mod, opset)
    assert proto.opset_import[0].version == opset
    onnx.checker.check_model(proto, full_check=True)
    assert run(proto, [np.arange(6, dtype=F32).reshape(2, 3)])[0] == 7.0


@pytest.mark.parametrize("opset", [OPSET - 1, 99, True, "17"])
def test_versions_that_do_not_serve(opset):
    mod = function(lambda b, x: b.emit(op.exp(x)), ((2, 3), F32))
    with pytest.raises(gg.ArgumentError, match="opset"):
        written(mod, opset)
