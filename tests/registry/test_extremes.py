"""Values and gradients of elementwise functions at extremes of each dtype, and at kinks.

The oracle is torch in float64, rounded to the dtype.
"""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.frontend.converters.nodes import node_model
from tests.peers import peer
from tests.running import function, run

op = relax.op
DTYPES = ["float16", "float32", "float64"]
TOLERANCE = {"float16": 3e-3, "float32": 3e-6, "float64": 1e-13}


def relax_op(emit):
    """A function of arrays: the value of an op, and its gradients for ones as the cotangent."""

    def evaluate(*arrays):
        types = [(a.shape, str(a.dtype)) for a in arrays]
        mod = gg.vjp(function(lambda builder, *x: builder.emit(emit(*x)), *types))
        return run(mod, "main_vjp", *arrays, np.ones_like(arrays[0]))

    return evaluate


def onnx_op(name, extra=None, **attributes):
    """The same of an ONNX operator; `extra` are further inputs, which are constants."""

    def evaluate(x):
        inputs = {"x": x, **{k: np.array(v, x.dtype) for k, v in (extra or {}).items()}}
        model = gg.from_onnx(node_model(name, inputs, **attributes))
        outputs, grads = gg.value_and_grad(model, wrt=["x"])(inputs, cotangent=np.ones_like(x))
        return [outputs["y"], grads["x"]]

    return evaluate


def unary():
    """Each function of one tensor, and torch's."""
    torch = peer("torch")
    f = torch.nn.functional
    return {
        "abs": (relax_op(op.abs), torch.abs),
        "asinh": (relax_op(op.asinh), torch.asinh),
        "atan": (relax_op(op.atan), torch.atan),
        "Celu": (onnx_op("Celu", alpha=2.0), lambda x: f.celu(x, 2.0)),
        "clip": (relax_op(lambda x: op.clip(x, -1.0, 2.0)), lambda x: x.clamp(-1, 2)),
        "Clip": (onnx_op("Clip", {"low": -1.0, "high": 2.0}), lambda x: x.clamp(-1, 2)),
        "Clip of numbers": (onnx_op("Clip", opset=10, min=-1.0, max=2.0), lambda x: x.clamp(-1, 2)),
        "clip below": (relax_op(lambda x: op.clip(x, 0.0, np.inf)), lambda x: x.clamp(min=0)),
        "cosh": (relax_op(op.cosh), torch.cosh),
        "Elu": (onnx_op("Elu", alpha=2.0), lambda x: f.elu(x, 2.0)),
        "erf": (relax_op(op.erf), torch.erf),
        "exp": (relax_op(op.exp), torch.exp),
        "gelu": (relax_op(op.nn.gelu), f.gelu),
        "gelu_tanh": (relax_op(op.nn.gelu_tanh), lambda x: f.gelu(x, approximate="tanh")),
        "Gelu": (onnx_op("Gelu", approximate="tanh"), lambda x: f.gelu(x, approximate="tanh")),
        "HardSigmoid": (onnx_op("HardSigmoid", alpha=1 / 6, beta=0.5), f.hardsigmoid),
        "HardSwish": (onnx_op("HardSwish"), f.hardswish),
        "leakyrelu": (relax_op(lambda x: op.nn.leakyrelu(x, 0.1)), lambda x: f.leaky_relu(x, 0.1)),
        "LeakyRelu": (onnx_op("LeakyRelu", alpha=0.25), lambda x: f.leaky_relu(x, 0.25)),
        "log": (relax_op(op.log), torch.log),
        "Mish": (onnx_op("Mish"), f.mish),
        "PRelu": (onnx_op("PRelu", {"slope": [0.25]}), lambda x: f.leaky_relu(x, 0.25)),
        "relu": (relax_op(op.nn.relu), torch.relu),
        "relu6": (relax_op(op.nn.relu6), f.relu6),
        "Relu6": (onnx_op("Clip", opset=10, min=0.0, max=6.0), f.relu6),
        "rsqrt": (relax_op(op.rsqrt), torch.rsqrt),
        "selu": (relax_op(op.nn.selu), f.selu),
        "Selu": (onnx_op("Selu"), f.selu),
        "Shrink": (onnx_op("Shrink", bias=0.5, lambd=0.5), f.softshrink),
        "sigmoid": (relax_op(op.sigmoid), torch.sigmoid),
        "silu": (relax_op(op.nn.silu), f.silu),
        "sinh": (relax_op(op.sinh), torch.sinh),
        "softplus": (relax_op(op.nn.softplus), f.softplus),
        "Softplus": (onnx_op("Softplus"), lambda x: f.softplus(x, threshold=40.0)),
        "Softsign": (onnx_op("Softsign"), f.softsign),
        "sqrt": (relax_op(op.sqrt), torch.sqrt),
        "square": (relax_op(op.square), torch.square),
        "Swish": (onnx_op("Swish", opset=24), f.silu),
        "tanh": (relax_op(op.tanh), torch.tanh),
        "ThresholdedRelu": (onnx_op("ThresholdedRelu"), lambda x: f.threshold(x, 1.0, 0.0)),
    }


def binary():
    """Each function of two tensors, and torch's."""
    torch = peer("torch")
    return {
        "add": (relax_op(op.add), torch.add),
        "atan2": (relax_op(op.atan2), torch.atan2),
        "divide": (relax_op(op.divide), torch.div),
        "log_add_exp": (relax_op(op.log_add_exp), torch.logaddexp),
        "maximum": (relax_op(op.maximum), torch.maximum),
        "minimum": (relax_op(op.minimum), torch.minimum),
        "multiply": (relax_op(op.multiply), torch.mul),
    }


def extremes(dtype):
    """Numbers of all sizes, of both signs."""
    info = np.finfo(dtype)
    largest, least = float(info.max), float(info.tiny)
    steps = [1e-5, 1e-3, 0.05, 0.3, 0.5, 1, 2, 5, 8, 10, 17, 20, 40, 88, 100, 300, 700, 1e3, 1e4]
    ends = [
        least,
        4 * least,
        least**0.5,
        largest**0.5 * 0.9,
        2 * largest**0.5,
        largest / 4,
        largest,
    ]
    positive = [0.0, *steps, *ends]
    return np.array([*positive, *(-x for x in positive)]).astype(dtype)


ROUNDED = ("HardSigmoid", "Selu")
"""Operators whose attributes ONNX rounds to float32."""


def tolerance_of(name, dtype):
    return 1e-7 if name in ROUNDED and dtype == "float64" else TOLERANCE[dtype]


def in_torch(reference, *arrays, dtype="float64"):
    torch = peer("torch")
    tensors = [torch.tensor(a.astype(dtype), requires_grad=True) for a in arrays]
    y = reference(*tensors)
    return [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y.sum(), tensors))]


def assert_right(name, evaluate, reference, *arrays):
    """Where the true value and gradient are finite, ours are, and near them."""
    dtype = str(arrays[0].dtype)
    tolerance = tolerance_of(name, dtype)
    with np.errstate(all="ignore"):
        expected = [r.astype(dtype) for r in in_torch(reference, *arrays)]
    is_finite = np.all([np.isfinite(r) for r in expected], axis=0)
    for ours, true in zip(evaluate(*arrays), expected, strict=True):
        # Below 1 the error of functions that saturate is one of 1.
        scale = np.maximum(np.abs(true.astype("float64")), 1.0)
        with np.errstate(all="ignore"):
            error = np.abs(ours.astype("float64") - true.astype("float64")) / scale
        wrong = is_finite & ~(error <= tolerance)
        points = [tuple(a[wrong][:5]) for a in arrays]
        assert not wrong.any(), f"at {points}: {ours[wrong][:5]}, not {true[wrong][:5]}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", unary())
def test_unary_at_extremes(name, dtype):
    assert_right(name, *unary()[name], extremes(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", binary())
def test_binary_at_extremes(name, dtype):
    if (name, dtype) == ("atan2", "float64"):
        # torch's own squares overflow there.
        pairs = [x for x in extremes(dtype) if not 0 < abs(x) < 1e-150 and abs(x) < 1e150]
    else:
        pairs = extremes(dtype)
    assert_right(name, *binary()[name], *(a.ravel() for a in np.meshgrid(pairs, pairs)))


def test_gradient_of_atan2_where_squares_leave_float64():
    a, b = np.array([[3e200, 4e200], [3e-200, 4e-200], [0.0, 2e-300], [1e300, 0.0]]).T
    _, by_a, by_b = relax_op(op.atan2)(a, b)
    np.testing.assert_allclose(by_a, [0.16e-200, 0.16e200, 0.5e300, 0.0], rtol=1e-13)
    np.testing.assert_allclose(by_b, [-0.12e-200, -0.12e200, 0.0, -1e-300], rtol=1e-13)


SMALL_RESULTS = ["softplus", "Softplus", "selu", "Selu", "Elu", "Celu", "tanh", "erf", "Mish"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMALL_RESULTS)
def test_small_results_have_all_digits(name, dtype):
    """Relative to the result: softplus(−20) is e⁻²⁰, elu(−1e-5) nearly −1e-5."""
    evaluate, reference = unary()[name]
    x = np.concatenate([-np.geomspace(1e-9, 80, 400), [0.0]]).astype(dtype)
    true, slope = in_torch(reference, x)
    value, gradient = evaluate(x)
    tolerance = 1e-6 if dtype == "float32" else max(tolerance_of(name, dtype) / 5, 1e-14)
    np.testing.assert_allclose(value, true, rtol=tolerance)
    if name not in ("tanh", "erf"):  # they saturate: their slope is a difference from 1
        np.testing.assert_allclose(gradient, slope, rtol=4 * tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_results_of_log_add_exp(dtype):
    d = np.geomspace(1e-3, 80, 200).astype(dtype)
    value, *_ = relax_op(op.log_add_exp)(np.zeros_like(d), -d)
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(value, np.log1p(np.exp(-d.astype("float64"))), rtol=tolerance)


KINKS = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 6.0, 0.5, -0.5, np.inf, -np.inf, np.nan]

DECIDED = {("HardSwish", "nan"): np.nan, ("HardSigmoid", "nan"): 1 / 6, ("Clip", "nan"): 1.0}
"""Where the gradient is another one than torch's: that of the piece that hands NaN on."""

PIECEWISE = [
    *(
        "abs",
        "Celu",
        "clip",
        "Clip",
        "Clip of numbers",
        "Elu",
        "HardSigmoid",
        "HardSwish",
        "leakyrelu",
    ),
    *("LeakyRelu", "PRelu", "relu", "relu6", "Relu6", "selu", "Selu", "Shrink", "ThresholdedRelu"),
    "clip below",
]


@pytest.mark.parametrize("name", PIECEWISE)
def test_kinks(name):
    evaluate, reference = unary()[name]
    x = np.array(KINKS)
    true, slope = in_torch(reference, x)
    value, gradient = evaluate(x)
    slope = [
        DECIDED.get((name, str(point)), right) for point, right in zip(KINKS, slope, strict=True)
    ]
    np.testing.assert_allclose(value, true, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_kinks_of_extrema(name):
    evaluate, reference = binary()[name]
    a, b = (x.ravel() for x in np.meshgrid(KINKS, KINKS))
    for ours, true in zip(evaluate(a, b), in_torch(reference, a, b), strict=True):
        np.testing.assert_allclose(ours, true, rtol=1e-12)
