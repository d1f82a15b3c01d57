"""Missing gradients are told where a step or a gradient is made, by the names of the model."""

import pytest
from tvm import relax

import graphgrad as gg
from graphgrad import models
from tests.running import function
from tests.unknown_ops import take_away

MAKE = {
    "train_step": lambda model, **options: gg.train_step(
        model, **{"loss": "cross_entropy", "optimizer": gg.optim.SGD(0.1), **options}
    ),
    "value_and_grad": gg.value_and_grad,
}


@pytest.fixture
def model():
    return gg.from_onnx(models.mlp((4, 5, 3)))


@pytest.mark.parametrize("name", MAKE)
def test_op_of_the_model(name, model, monkeypatch):
    take_away(monkeypatch, "relax.nn.relu")
    with pytest.raises(gg.MissingGradientError, match="activation1") as caught:
        MAKE[name](model)
    assert caught.value.missing == [("relax.nn.relu", ["activation1"])]
    assert "forward" not in str(caught.value)


@pytest.mark.parametrize("name", MAKE)
def test_op_of_the_loss(name, model, monkeypatch):
    take_away(monkeypatch, "relax.tanh")
    loss = function(
        lambda b, y: b.emit(relax.op.sum(b.emit(relax.op.tanh(y)))), ((2, 3), "float32")
    )["main"]
    with pytest.raises(gg.MissingGradientError, match=r"relax\.tanh"):
        MAKE[name](model, loss=loss)


def test_what_is_not_on_the_way_is_not_missing(model, monkeypatch):
    take_away(monkeypatch, "relax.nn.relu")
    gg.value_and_grad(model, wrt=[list(model.params)[-1]])
