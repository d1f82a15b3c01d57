"""Normalizations from ONNX, against onnxruntime or the definition, and their gradients."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from graphgrad.frontend.converters import Node, find
from graphgrad.ir.tensor import Emitter
from tests.frontend.converters.nodes import (
    FLOAT,
    assert_like_onnxruntime,
    drawn,
    forward,
    node_model,
)
from tests.running import run

MICROSOFT = "com.microsoft"
X = drawn((2, 4, 3))
STATISTICS = ("y", "mean", "deviation")


def vector(size, seed=1, dtype="float32"):
    return drawn((size,), 0.5, 1.5, seed, dtype)


def inputs_of(*arrays):
    return {f"x{i}": array for i, array in enumerate(arrays)}


def rows(dtype):
    return inputs_of(X.astype(dtype), vector(3, 1, dtype), vector(3, 2, dtype))


ONNXRUNTIME = {
    "layer_norm": ("LayerNormalization", rows("float32"), {}),
    "layer_norm_axis": (
        "LayerNormalization",
        inputs_of(X, drawn((4, 3)), drawn((4, 3), seed=2)),
        {"axis": 1, "outputs": STATISTICS},
    ),
    "layer_norm_no_beta": ("LayerNormalization", inputs_of(X, vector(3)), {"epsilon": 0.1}),
    "layer_norm_broadcast": (
        "LayerNormalization",
        inputs_of(X, vector(3)),
        {"axis": 1, "opset": 17},
    ),
    "layer_norm_float64": ("LayerNormalization", rows("float64"), {}),
    "rms_norm": ("RMSNormalization", inputs_of(X, drawn((4, 3))), {"axis": -2}),
    "group_norm": (
        "GroupNormalization",
        inputs_of(X, vector(4), vector(4, 2)),
        {"num_groups": 2, "opset": 21},
    ),
    "instance_norm": ("InstanceNormalization", inputs_of(X, vector(4), vector(4, 2)), {"opset": 7}),
    "mean_variance": ("MeanVarianceNormalization", inputs_of(X), {"axes": [0, 2], "opset": 13}),
    "lrn": ("LRN", inputs_of(drawn((1, 5, 2, 2))), {"size": 3, "alpha": 0.5, "bias": 2.0}),
    "l1": ("LpNormalization", inputs_of(X), {"p": 1, "axis": 1, "opset": 7}),
    "l2": ("LpNormalization", inputs_of(X), {"opset": 22}),
    "skip": (
        "SkipLayerNormalization",
        inputs_of(X, drawn((2, 4, 3), seed=3), vector(3), None, vector(3, 4)),
        {"domain": MICROSOFT, "outputs": ("y", "", "", "sum")},
    ),
    "embed": (
        "EmbedLayerNormalization",
        inputs_of(
            np.array([[1, 0, 2], [3, 3, 1]], "int32"),
            np.array([[0, 1, 1], [1, 0, 0]], "int32"),
            drawn((4, 4)),
            drawn((3, 4), seed=1),
            drawn((2, 4), seed=2),
            vector(4),
            vector(4, 2),
            np.array([[1, 1, 0], [1, 1, 1]], "int32"),
        ),
        {
            "domain": MICROSOFT,
            "outputs": ("y", "lengths", "sum"),
            "types": {"y": FLOAT, "sum": FLOAT},
            "ranks": {"y": 3, "lengths": 1, "sum": 3},
        },
    ),
}


def case(name):
    op_type, inputs, options = ONNXRUNTIME[name]
    return node_model(op_type, inputs, **options), inputs


@pytest.mark.parametrize("name", ONNXRUNTIME)
def test_outputs_equal_those_of_onnxruntime(name):
    assert_like_onnxruntime(*case(name))


@pytest.mark.parametrize(
    "name",
    [
        "layer_norm_axis",
        "layer_norm_broadcast",
        "mean_variance",
        "lrn",
        "l1",
        "l2",
        "skip",
        "embed",
    ],
)
def test_gradients_equal_differences(name):
    proto, inputs = case(name)
    gg.check_grads(gg.from_onnx(proto), {n: a for n, a in inputs.items() if a is not None})


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("op_type", "sizes", "options"),
    [
        ("LayerNormalization", [3, 3], {}),
        ("RMSNormalization", [3], {}),
        ("GroupNormalization", [4, 4], {"num_groups": 2}),
        ("InstanceNormalization", [4, 4], {}),
    ],
)
def test_half_precision_takes_statistics_in_float32(op_type, sizes, options, dtype):
    shifted = X + 8.0
    wide = inputs_of(shifted, *(vector(size, i) for i, size in enumerate(sizes)))
    half = {name: array.astype(dtype) for name, array in wide.items()}
    rounded = {name: array.astype("float32") for name, array in half.items()}
    (y,) = forward(node_model(op_type, half, **options), half)
    (expected,) = forward(node_model(op_type, rounded, **options), rounded)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected.astype(dtype))


def test_statistics_have_the_stash_type():
    inputs = rows("float16")
    types = dict.fromkeys(STATISTICS[1:], FLOAT)
    proto = node_model("LayerNormalization", inputs, STATISTICS, types=types)
    y, mean, deviation = forward(proto, inputs)
    assert [str(a.dtype) for a in (y, mean, deviation)] == ["float16", "float32", "float32"]
    x = inputs["x0"].astype("float64")
    np.testing.assert_allclose(mean, x.mean(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(deviation, (x.var(-1, keepdims=True) + 1e-5) ** -0.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("LpNormalization", {"p": 1}),
        ("LpNormalization", {"p": 2}),
        ("MeanVarianceNormalization", {"axes": [1]}),
    ],
)
def test_zero_norms_give_zeros_and_finite_gradients(op_type, options):
    x = np.array([[0.0, 0.0], [3.0, 4.0]], "float32")
    model = gg.from_onnx(node_model(op_type, {"x": x}, **options))
    y, gradient = run(gg.vjp(model.mod), "main_vjp", x, np.ones_like(x))
    assert not y[0].any() and y[1].any()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("op_type", "arrays", "options"),
    [
        ("LayerNormalization", (X, vector(3)), {}),
        ("GroupNormalization", (X, vector(4), vector(4)), {"num_groups": 2}),
        ("LRN", (drawn((2, 3, 2, 2)),), {"size": 3}),
    ],
)
def test_a_symbolic_batch_gives_what_a_static_one_gives(op_type, arrays, options):
    inputs = inputs_of(*arrays)
    symbolic = {"x0": ["n", *arrays[0].shape[1:]]}
    (static,) = forward(node_model(op_type, inputs, **options), inputs)
    (y,) = forward(node_model(op_type, inputs, shapes=symbolic, **options), inputs)
    np.testing.assert_allclose(y, static, atol=1e-6)


def test_an_even_window_reaches_one_channel_further_up():
    x = drawn((1, 6, 2, 1))
    (y,) = forward(node_model("LRN", {"x": x}, size=4, alpha=1.0, beta=0.5), {"x": x})
    squares = np.pad(x.astype("float64") ** 2, ((0, 0), (1, 2), (0, 0), (0, 0)))
    sums = sum(squares[:, k : k + 6] for k in range(4))
    np.testing.assert_allclose(y, x / np.sqrt(1 + sums / 4), atol=1e-6)


def test_before_opset_21_groups_share_their_scale():
    """Such a model is refused by onnx's own checker, so that the converter is called itself."""
    arrays = (X, vector(2, 1), vector(2, 2))
    params = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arrays)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        node = Node(
            name="node",
            op_type="GroupNormalization",
            domain="",
            opset=18,
            inputs=params,
            attributes={"num_groups": 2},
            output_count=1,
            emitter=Emitter(builder),
        )
        builder.emit_func_output(find("", "GroupNormalization")(node).expr)
    (y,) = run(builder.get(), "main", *arrays)
    per_channel = inputs_of(X, *(np.repeat(a, 2) for a in arrays[1:]))
    proto = node_model("GroupNormalization", per_channel, opset=21, num_groups=2)
    np.testing.assert_allclose(y, forward(proto, per_channel)[0], atol=1e-6)


def test_channels_that_do_not_divide_into_groups():
    proto = node_model("GroupNormalization", inputs_of(X, vector(4), vector(4)), num_groups=3)
    with pytest.raises(gg.ModelError, match="its 4 channels do not divide into 3 groups"):
        gg.from_onnx(proto)
