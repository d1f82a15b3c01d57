"""Losses: values and gradients in float64 against torch, and to order two by differences."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import compare_gradients, flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.tensor import Emitter
from graphgrad.ops import losses
from tests.labels import label
from tests.peers import peer
from tests.running import F64, run


def pair(name, *weights, low=-1.0, high=1.0, target=(-1.0, 1.0), **options):
    """Return a case: a loss of two float tensors of one shape."""
    inputs = {"input": ((3, 4), low, high), "target": ((3, 4), *target)}
    return name, inputs | dict.fromkeys(weights, ((3, 4), 0.5, 1.5)), options


def labeled(name, shape, *weights, **options):
    """Return a case: a loss of scores and integer labels."""
    classes = shape[min(1, len(shape) - 1)]
    labels = shape[:1] + shape[2:] if len(shape) > 1 else ()
    inputs = {"input": (shape, -2.0, 2.0), "target": (labels, 0, classes)}
    return name, inputs | dict.fromkeys(weights, ((classes,), 0.5, 1.5)), options


def soft(*weights, **options):
    """Return a case: a cross entropy with class probabilities."""
    name, inputs, options = pair("cross_entropy", target=(0.0, 1.0), **options)
    return name, inputs | dict.fromkeys(weights, ((4,), 0.5, 1.5)), options


def cases(reduction):
    """Return the cases that every reduction has."""
    r, unit = {"reduction": reduction}, {"target": (0.0, 1.0)}
    ignoring = {"ignore_index": 1, **r}
    return [
        pair("mse", **r),
        pair("l1", **r),
        pair("smooth_l1", low=-3.0, **r),
        pair("smooth_l1", beta=0.3, **r),
        pair("smooth_l1", beta=0.0, **r),
        pair("huber", delta=0.5, **r),
        pair("bce", low=0.1, high=0.9, **unit, **r),
        pair("bce", "weight", low=0.1, high=0.9, **unit, **r),
        pair("bce_with_logits", low=-9.0, high=9.0, **unit, **r),
        pair("bce_with_logits", "weight", "pos_weight", **unit, **r),
        pair("kl_div", target=(0.1, 1.0), **r),
        pair("kl_div", log_target=True, **r),
        labeled("nll", (5, 3), **r),
        labeled("nll", (2, 3, 2, 2), "weight", **ignoring),
        labeled("cross_entropy", (5, 3), **r),
        labeled("cross_entropy", (5, 3), "weight", **ignoring),
        labeled("cross_entropy", (5, 3), label_smoothing=0.1, **r),
        labeled("cross_entropy", (2, 3, 4), "weight", label_smoothing=0.2, **ignoring),
        soft(**r),
        soft("weight", label_smoothing=0.3, **r),
    ]


CASES = [
    *cases("mean"),
    *cases("none"),
    pair("mse", reduction="sum"),
    labeled("nll", (5, 3), reduction="sum"),
    labeled("cross_entropy", (5, 3), "weight", label_smoothing=0.1, reduction="sum"),
    soft("weight", reduction="sum"),
    pair("kl_div", reduction="batchmean", target=(0.1, 1.0)),
    labeled("cross_entropy", (3,)),
    labeled("cross_entropy", (3,), "weight", label_smoothing=0.1),
]

TORCH_NAMES = {
    "mse": "mse_loss",
    "l1": "l1_loss",
    "smooth_l1": "smooth_l1_loss",
    "huber": "huber_loss",
    "bce": "binary_cross_entropy",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "nll": "nll_loss",
}


def loss_module(name, inputs, options, function="main", dtype=F64):
    """Return a module with the loss as a function of its inputs."""
    integer = isinstance(inputs["target"][1], int)
    params = {
        key: relax.Var(
            key, relax.TensorType(shape, "int64" if integer and key == "target" else dtype)
        )
        for key, (shape, *_) in inputs.items()
    }
    builder = relax.BlockBuilder()
    with builder.function(function, list(params.values())):
        with builder.dataflow():
            emitter = Emitter(builder)
            x, target, *weights = (emitter.lift(param) for param in params.values())
            weights = dict(zip(list(params)[2:], weights, strict=True))
            loss = getattr(losses, name)(x, target, **weights, **options)
            result = builder.emit_output(loss.expr)
        builder.emit_func_output(result)
    return builder.get()


def draw(inputs, generator):
    """Draw the inputs of a case; bounds that are ints make labels."""
    return [
        generator.integers(low, high, shape)
        if isinstance(low, int)
        else generator.uniform(low, high, shape)
        for shape, low, high in inputs.values()
    ]


@cache
def machine():
    """All cases and their derivatives, compiled together."""
    mod = tvm.IRModule()
    for index, case in enumerate(CASES):
        name = f"case{index}"
        mod.update(gg.vjp(gg.vjp(loss_module(*case, function=name), name), f"{name}_vjp"))
    return relax.VirtualMachine(gg.compile(mod), tvm.cpu())


def call(name, *arrays):
    return flat(machine()[name](*map(to_tensor, arrays)))


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: label(CASES[i]))
def test_value_and_gradient_equal_torch(index):
    torch = peer("torch")
    name, inputs, options = CASES[index]
    generator = np.random.default_rng(index)
    arrays = draw(inputs, generator)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in arrays]
    x, target, *weights = tensors
    # torch has no derivative by class weights; differences check ours.
    constant = name in ("nll", "cross_entropy", "bce", "bce_with_logits")
    weights = [w.detach() if constant else w for w in weights]
    function = getattr(torch.nn.functional, TORCH_NAMES.get(name, name))
    keywords = dict(zip(list(inputs)[2:], weights, strict=True))
    theirs = function(x, target, **keywords, **options)
    ours = call(f"case{index}", *arrays)[0]
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12, atol=1e-14)
    cotangent = generator.uniform(-1, 1, ours.shape)
    theirs.backward(torch.tensor(cotangent))
    gradients = call(f"case{index}_vjp", *arrays, cotangent)[1:]
    leaves = [t for t in tensors if t.requires_grad]
    for gradient, leaf in zip(gradients, leaves, strict=True):
        if leaf.grad is not None:
            np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda i: label(CASES[i]))
def test_derivatives_to_order_two_equal_differences(index):
    generator = np.random.default_rng(index)
    arrays = draw(CASES[index][1], generator)
    for name in (f"case{index}", f"case{index}_vjp"):
        outputs = call(name, *arrays)
        cotangents = [generator.uniform(-1, 1, out.shape) for out in outputs]
        every = call(f"{name}_vjp", *arrays, *cotangents)
        gradients = every[len(outputs) :]
        compare_gradients(
            lambda *varied: call(name, *varied),  # noqa: B023
            arrays,
            cotangents,
            gradients,
            generator,
            name,
        )
        arrays = [*arrays, *cotangents]


def test_logits_of_any_size_give_finite_losses_and_gradients():
    _, inputs, _ = pair("bce_with_logits")
    inputs["input"] = inputs["target"] = ((6,), 0.0, 1.0)
    mod = gg.vjp(loss_module("bce_with_logits", inputs, {}, dtype="float32"))
    x = np.array([-1e4, -100, 0, 100, 1e4, 50], "float32")
    target = np.array([0, 1, 0.5, 0, 1, 1], "float32")
    loss, gradient, _ = run(mod, "main_vjp", x, target, np.float32(6))
    np.testing.assert_allclose(loss * 6, 200 + np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, [0, -1, 0, 1, 0, 0], atol=1e-7)


def test_certain_and_right_logits_give_small_losses_and_not_zero():
    _, inputs, options = pair("bce_with_logits", reduction="none")
    inputs["input"] = inputs["target"] = ((4,), 0.0, 1.0)
    mod = loss_module("bce_with_logits", inputs, options, dtype="float32")
    x = np.array([10, 17, 20, 40], "float32")
    (loss,) = run(mod, "main", x, np.ones(4, "float32"))
    np.testing.assert_allclose(loss, np.log1p(np.exp(-x.astype("float64"))), rtol=1e-6)


def test_certain_probabilities_give_finite_losses():
    _, inputs, options = pair("bce", reduction="none")
    mod = gg.vjp(loss_module("bce", inputs, options))
    p, t = np.broadcast_arrays([0.0, 1.0, 0.0, 1.0], np.array([[0.0], [1.0], [0.5]]))
    loss, *gradients = run(mod, "main_vjp", p, t, np.ones((3, 4)))
    expected = [[0, 100, 0, 100], [100, 0, 100, 0], [50, 50, 50, 50]]
    np.testing.assert_array_equal(loss, expected)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_divergence_of_a_distribution_with_zeros():
    _, inputs, options = pair("kl_div", reduction="sum")
    mod = gg.vjp(loss_module("kl_div", inputs, options))
    t = np.tile([0.0, 0.5, 0.5, 0.0], (3, 1))
    x = np.log(np.tile([0.25, 0.25, 0.25, 0.25], (3, 1)))
    loss, by_x, by_t = run(mod, "main_vjp", x, t, np.float64(1))
    np.testing.assert_allclose(loss, 3 * np.log(2))
    np.testing.assert_array_equal(by_x, -t)
    assert np.isfinite(by_t).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=label)
def test_half_precision_adds_up_in_float32(dtype):
    inputs = {"input": ((300, 300), 0.0, 1.0), "target": ((300, 300), 0.0, 1.0)}
    mod = loss_module("mse", inputs, {}, dtype=np.dtype(dtype).name)
    x = np.ones((300, 300), dtype)
    (loss,) = run(mod, "main", x, np.zeros_like(x))
    assert loss.dtype == dtype
    assert float(loss) == 1.0


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (pair("mse", reduction="average"), "reduction='average' is unknown"),
        (pair("smooth_l1", beta=-1.0), "beta=-1.0 is negative"),
        (pair("huber", delta=0.0), "delta=0.0 is not positive"),
        (labeled("cross_entropy", (2, 3), label_smoothing=2.0), "label_smoothing=2.0"),
        (("mse", {"input": ((2, 3), 0.0, 1.0), "target": ((3,), 0.0, 1.0)}, {}), "one shape"),
        (("mse", {"input": ((2,), 0.0, 1.0), "target": ((2,), 0, 2)}, {}), "int64"),
        (("nll", {"input": ((2, 3), 0.0, 1.0), "target": ((3,), 0, 3)}, {}), "labels of shape"),
        (("nll", {"input": ((2, 3), 0.0, 1.0), "target": ((2,), 0.0, 1.0)}, {}), "integer labels"),
    ],
    ids=label,
)
def test_what_does_not_fit_is_refused(case, message):
    with pytest.raises(gg.GraphGradError, match=message):
        loss_module(*case)
