import ml_dtypes  # noqa: F401 (numpy learns of bfloat16)
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.errors import InputError, ModelError
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.write import write_function
from graphgrad.train.forward import ResolvedLoss
from graphgrad.train.loss import LOSSES, check_target_shape
from tests.frontend.graphs import random
from tests.peers import peer
from tests.train.nets import module

CROSS_ENTROPY, MEAN_SQUARED_ERROR = LOSSES["cross_entropy"], LOSSES["mse"]


def tensor(*shape, dtype="float32"):
    return relax.TensorType(list(shape), dtype)


def identity(shape):
    """A model that returns its input times one."""
    mod = module(lambda b, x, w: relax.op.multiply(x, w), x=(shape, "float64"), w=([1], "float64"))
    return gg.Model(mod, {"w": np.ones(1)})


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (2, 4, 3, 2)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_cross_entropy_follows_torch(shape, scale):
    torch = peer("torch")
    logits = scale * random(*shape, dtype="float64")
    labels = np.arange(logits.size // shape[1]).reshape(shape[0], *shape[2:]) % shape[1]
    given = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(given, torch.tensor(labels))
    loss.backward()
    f = gg.value_and_grad(identity(list(shape)), wrt="x", loss="cross_entropy")
    outputs, gradients = f({"x": logits, "targets": labels})
    assert outputs["loss"] == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(gradients["x"], given.grad.numpy(), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)], ids=str)
def test_mean_squared_error(shape):
    x, y = random(*shape, dtype="float64"), random(*shape, dtype="float64", seed=1)
    f = gg.value_and_grad(identity(list(shape)), wrt="x", loss="mse")
    outputs, gradients = f({"x": x, "targets": y})
    assert outputs["loss"] == pytest.approx(np.mean((x - y) ** 2))
    np.testing.assert_allclose(gradients["x"], 2 * (x - y) / x.size, rtol=1e-12)


LABELS = np.array([0, 2, 1, 2])
SHARES = np.random.default_rng(3).uniform(0.1, 1, (4, 3))
SETTINGS = [
    (gg.loss.cross_entropy(weight=[1.0, 2.0, 0.5]), LABELS, "cross_entropy",
     {"weight": [1.0, 2.0, 0.5]}),
    (gg.loss.cross_entropy(ignore_index=2, label_smoothing=0.1), LABELS, "cross_entropy",
     {"ignore_index": 2, "label_smoothing": 0.1}),
    (gg.loss.cross_entropy(ignore_index=-1), np.array([0, -1, 1, 2]), "cross_entropy",
     {"ignore_index": -1}),
    ("nll", LABELS, "nll_loss", {}),
    ("l1", SHARES, "l1_loss", {}),
    ("smooth_l1", SHARES, "smooth_l1_loss", {}),
    (gg.loss.smooth_l1(0.3), SHARES, "smooth_l1_loss", {"beta": 0.3}),
    ("huber", SHARES, "huber_loss", {}),
    (gg.loss.huber(0.3), SHARES, "huber_loss", {"delta": 0.3}),
    ("bce", SHARES, "binary_cross_entropy", {}),
    ("bce_with_logits", SHARES, "binary_cross_entropy_with_logits", {}),
    ("kl_div", SHARES, "kl_div", {"reduction": "batchmean"}),
]  # fmt: skip


@pytest.mark.parametrize("loss, targets, name, settings", SETTINGS, ids=range(len(SETTINGS)))
def test_losses_follow_torch(loss, targets, name, settings):
    torch = peer("torch")
    x = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3))
    given = torch.tensor(x, requires_grad=True)
    if "weight" in settings:
        settings = {**settings, "weight": torch.tensor(settings["weight"], dtype=torch.float64)}
    theirs = getattr(torch.nn.functional, name)(given, torch.tensor(targets), **settings)
    theirs.backward()
    f = gg.value_and_grad(identity([4, 3]), wrt="x", loss=loss)
    outputs, gradients = f({"x": x, "targets": targets})
    assert outputs["loss"] == pytest.approx(theirs.item(), rel=1e-12)
    np.testing.assert_allclose(gradients["x"], given.grad.numpy(), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("make", [
    lambda: gg.loss.cross_entropy(label_smoothing=1.5),
    lambda: gg.loss.cross_entropy(weight=[-1.0, 1.0]),
    lambda: gg.loss.nll(weight=[]),
    lambda: gg.loss.huber(0.0),
    lambda: gg.loss.smooth_l1(np.inf),
    lambda: gg.loss.nll(weight=[[1.0, 2.0]]),
    lambda: gg.loss.nll(weight=["heavy"]),
    lambda: gg.loss.cross_entropy(weight=2.0),
    lambda: gg.loss.nll(ignore_index=1.5),
    lambda: gg.loss.cross_entropy(ignore_index=True),
    lambda: gg.loss.cross_entropy(label_smoothing="a little"),
    lambda: gg.loss.huber("wide"),
], ids=[
    "smoothing", "weight", "no weight", "delta", "beta", "rows", "text", "one", "fraction", "bool",
    "smoothing text", "delta text",
])  # fmt: skip
def test_bad_settings(make):
    with pytest.raises(gg.ArgumentError):
        make()


def test_classes_are_axis_1():
    """Told before any range of labels: a language model may have its classes elsewhere."""
    with pytest.raises(InputError, match=r"\(2, 5\), given \(2, 3\); axis 1 of .* the classes"):
        CROSS_ENTROPY.prepare(np.full((2, 3), 4), tensor(2, 3, 5))


def test_weights_must_be_one_per_class():
    f = gg.value_and_grad(identity([4, 3]), wrt="x", loss=gg.loss.cross_entropy(weight=[1.0, 2.0]))
    with pytest.raises(ModelError, match=r"2 class weights, but .* has 3 classes"):
        f({"x": np.ones((4, 3)), "targets": LABELS})


def test_targets_of_bce_are_probabilities():
    with pytest.raises(InputError, match="bce takes numbers from 0 to 1, given -1 to 2"):
        LOSSES["bce"].prepare(np.array([-1.0, 2.0]), tensor(2))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_labels_of_any_integer_dtype(dtype):
    prepared = CROSS_ENTROPY.prepare(np.array([0, 2, 1], dtype), tensor(3, 3))
    assert prepared.dtype == np.int64 and prepared.tolist() == [0, 2, 1]


@pytest.mark.parametrize("labels, message", [
    ([0.0, 1.0], r"given float64; convert class numbers with .astype"),
    ([[0, 1.0]], r"one-hot rows with .argmax"),
    ([True, False], "given bool"),
    ([0, 3], r"label 3 at index \[1\] is out of range; the model has 3 classes.*\(1 label"),
    ([-1, -2], r"label -1 at index \[0\].*\(2 label"),
    ([[0, 1], [7, 0]], r"label 7 at index \[1, 0\]"),
    (np.array([2**64 - 1], "uint64"), "out of range"),
])  # fmt: skip
def test_bad_labels(labels, message):
    batch, *positions = np.shape(labels)
    with pytest.raises(InputError, match=message):
        CROSS_ENTROPY.prepare(np.array(labels), tensor(batch, 3, *positions))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "uint8"])
def test_values_of_any_number_dtype(dtype):
    assert MEAN_SQUARED_ERROR.prepare(np.ones(3, dtype), tensor(3)).dtype == np.float32


@pytest.mark.parametrize("values", [[1j], ["a"], [True]])
def test_values_that_are_no_numbers(values):
    with pytest.raises(InputError, match="mse takes numbers"):
        MEAN_SQUARED_ERROR.prepare(np.array(values), tensor(1))


@pytest.mark.parametrize("loss, output", [
    (CROSS_ENTROPY, tensor(3)), (CROSS_ENTROPY, tensor()),
    (CROSS_ENTROPY, tensor(3, 3, dtype="int64")),
    (MEAN_SQUARED_ERROR, tensor(3, dtype="int64")),
])  # fmt: skip
def test_outputs_that_a_loss_cannot_take(loss, output):
    with pytest.raises(ModelError, match="choose another loss"):
        loss.target_type(output)


@pytest.mark.parametrize("loss, divisor", [
    ("cross_entropy", 8), ("nll", 8), ("mse", 24), ("bce", 24), ("kl_div", 2),
])  # fmt: skip
def test_what_a_mean_divides_by(loss, divisor):
    assert LOSSES[loss].divisor(tensor(2, 3, 4), None) == divisor


def test_a_loss_that_is_unknown_divides_by_the_examples():
    function = ResolvedLoss(identity([2]), "mse")
    assert function.divisor([tensor(5, 2)], [tensor(5, 7)], None) == 35
    unknown = ResolvedLoss(identity([2]), None)
    assert unknown.divisor([tensor(5, 2), tensor(6)], [tensor()], None) == 5
    assert unknown.divisor([tensor()], [tensor()], None) == unknown.divisor([], [], None) == 1


def test_a_mean_over_labels_that_count_divides_by_their_weights():
    labels, weight = np.array([[0, 2, 1], [2, -100, 0]]), [0.5, 2.0, 3.0]
    losses = [
        gg.loss.cross_entropy(weight=weight, ignore_index=-100),
        gg.loss.cross_entropy(weight=weight, ignore_index=2),
        gg.loss.nll(ignore_index=-100),
        gg.loss.nll(weight=weight),
    ]
    params = [relax.Var("labels", tensor(2, 3, dtype="int64"))]

    def body(emitter):
        return tuple(loss.divisor(tensor(2, 3, 3), emitter.lift(params[0])) for loss in losses)

    function = relax.VirtualMachine(
        gg.compile(write_function(tvm.IRModule(), "main", params, body)), tvm.cpu()
    )["main"]
    divisors = [
        [float(divisor.numpy()) for divisor in function(to_tensor(given))]
        for given in (labels, np.where(labels < 0, 2, labels))
    ]
    assert divisors[0][::2] == [9, 5] and divisors[1][1:] == [3, 6, 12]


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (2, 3, 1), (1, 3)])
def test_targets_are_never_broadcast(shape):
    check_target_shape(np.zeros((2, 3)), (2, 3))
    with pytest.raises(InputError, match=r"targets: expected shape \(2, 3\), given"):
        check_target_shape(np.zeros(shape), (2, 3))
