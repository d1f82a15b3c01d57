"""A loss that is a number to all who ask, and is read from the device once."""

import copy
import json
import math
import operator
import pickle
import statistics
from decimal import Decimal
from fractions import Fraction
from numbers import Real

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad.errors import DeviceError
from graphgrad.ir.arrays import to_tensor
from graphgrad.train import step_loss
from graphgrad.train.step_loss import ReadLoss, StepLoss
from tests.frontend.graphs import random
from tests.labels import label
from tests.peers import peer
from tests.train.nets import perceptron

X = 2.5


@pytest.fixture
def unread():
    return StepLoss(to_tensor(np.float32(X)))


@pytest.fixture(params=["unread", "read"])
def loss(request, unread):
    return unread if request.param == "unread" else ReadLoss(X, applied=True)


@pytest.mark.parametrize("ask", [
    float, int, bool, complex, abs, hash, str, repr, round, math.floor, math.ceil, math.trunc,
    math.isfinite, math.sqrt, operator.neg, operator.pos,
    lambda x: round(x, 1), lambda x: f"{x:.3f}", "{:5.1f}".format, lambda x: {X: "held"}[x],
    lambda x: x.real, lambda x: x.imag, lambda x: x.conjugate(), lambda x: x.hex(),
    lambda x: x.is_integer(), lambda x: x.as_integer_ratio(),
    lambda x: np.isfinite(x).item(), lambda x: np.array([x, 1.0]).tolist(), np.sqrt, np.float64,
    lambda x: np.asarray(x, "float32").dtype.name, lambda x: sum([x, x]), lambda x: max(x, 3),
    lambda x: statistics.mean([x, x]), lambda x: math.fsum([x, 1]),
    lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy,
], ids=label)  # fmt: skip
def test_it_answers_as_the_float_does(loss, ask):
    assert ask(loss) == ask(X)


@pytest.mark.parametrize(
    "other", [3, 2.5, True, Fraction(1, 3), np.float32(0.5), np.float64(4)], ids=label
)
@pytest.mark.parametrize("function", [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, divmod, operator.lt, operator.le, operator.gt, operator.ge, operator.eq,
    operator.ne,
])  # fmt: skip
def test_operators_on_both_sides(loss, function, other):
    for result, expected in [
        (function(loss, other), function(X, other)),
        (function(other, loss), function(other, X)),
    ]:
        assert result == expected and type(result) is type(expected)


def test_operators_among_losses(loss):
    assert loss - StepLoss(1.0) == 1.5 and loss > StepLoss(1.0) and loss == StepLoss(X)
    assert StepLoss(1.0) - ReadLoss(X, applied=True) == ReadLoss(1.0, applied=True) - StepLoss(X)
    assert (loss == "text", loss != None) == (False, True)  # noqa: E711
    with pytest.raises(TypeError, match="unsupported"):
        loss + "text"


def test_arrays_take_it(loss):
    np.testing.assert_array_equal(np.ones(3) * loss, np.full(3, X))
    np.testing.assert_array_equal(loss * np.ones(3), np.full(3, X))
    assert np.mean([loss, loss]) == X


def test_it_is_a_real_number(loss):
    assert isinstance(loss, Real) and isinstance(loss, float) == isinstance(loss, ReadLoss)
    for plain in (float(loss), loss.item(), pickle.loads(pickle.dumps(loss))):
        assert type(plain) is float and plain == X


@pytest.mark.parametrize(
    "take",
    [json.dumps, Decimal, lambda x: peer("torch").tensor(x).item()],
    ids=["json", "decimal", "torch"],
)
def test_what_insists_on_floats_takes_the_loss_of_a_step_that_is_over(take, unread):
    assert take(ReadLoss(X, applied=True)) == take(unread.settle()) == take(X)


def test_a_step_on_the_host_is_over_when_it_returns():
    loss = gg.train_step(perceptron())(random(8, 4), np.arange(8) % 3)
    assert isinstance(loss, float) and loss.applied and loss.is_read and loss.settle() is loss
    assert json.loads(json.dumps({"loss": loss})) == {"loss": float(loss)}


def test_it_is_read_once_and_only_when_asked(unread, monkeypatch):
    asked = []
    read = step_loss.read_number
    monkeypatch.setattr(step_loss, "read_number", lambda t: asked.append(t) or read(t))
    assert not unread.is_read and isinstance(unread, Real) and not asked
    assert float(unread) == X and unread.is_read
    assert unread + unread == 2 * X and len(asked) == 1


@pytest.mark.parametrize("before, after, applied", [(4.0, 5.0, True), (4.0, 4.0, False)])
def test_whether_the_step_was_applied(before, after, applied):
    counts = to_tensor(np.float64(before)), to_tensor(np.float64(after))
    loss = StepLoss(to_tensor(np.float32(X)), counts)
    assert loss.applied is applied and not loss.is_read
    settled = loss.settle()
    assert loss.is_read and settled == X and settled.applied is loss.applied is applied


def test_losses_of_a_step_keep_their_values():
    """Each stands in memory of its own, also while later steps run."""
    step = gg.train_step(perceptron())
    x, y = random(8, 4), np.arange(8) % 3
    held, kept = [], []
    for run in range(3):
        given = step._call_inputs(x)
        forward = step._forward(given)
        step(x, y)
        arguments = [*given.tensors.values(), *step._targets(y, forward), step._tensors.rate]
        function = step._functions.step(given.shapes, forward, step._compile_updating)
        loss, others = function(*arguments, *step._tensors.everything())
        updates = others[0]
        step._tensors.updates = updates
        held.append((loss, updates))
        kept.append((loss.numpy().copy(), updates.numpy().copy()))
        assert kept[-1][1] == 2 * run + 2
    for tensors, arrays in zip(held, kept, strict=True):
        assert [float(t.numpy()) for t in tensors] == [float(a) for a in arrays]
    assert len({t.data_ptr() for tensors in held for t in tensors}) == 6


def test_a_device_that_failed_is_told(monkeypatch):
    class Lost:
        device, dtype = tvm.cuda(), "float32"

        def numpy(self):
            raise RuntimeError("CUDA Runtime Error: cudaErrorIllegalAddress (700): an illegal ...")

    with pytest.raises(DeviceError, match=r"cuda:0 failed at a step, or before: CUDA.*700"):
        step_loss.read_number(Lost())
