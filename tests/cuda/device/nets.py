"""Models that train on the device in tests, each with a batch."""

from dataclasses import dataclass
from functools import partial

import numpy as np

import graphgrad as gg
from graphgrad import models
from tests import derived_nets
from tests.peers import peer
from tests.promoted_models import promoted
from tests.torch_export import NETWORKS, build, export, inputs_of

BATCH = 4


@dataclass
class Case:
    """A model, and what it trains on.

    Attributes
    ----------
    model : Model
    inputs : dict of str to array
    labels : array
    """

    model: gg.Model
    inputs: dict[str, np.ndarray]
    labels: np.ndarray

    def promoted(self):
        """Return the same in float64."""
        inputs = {
            name: a.astype("float64") if a.dtype == "float32" else a
            for name, a in self.inputs.items()
        }
        return Case(promoted(self.model), inputs, self.labels)


def mlp():
    """A perceptron."""
    return _of(models.mlp((16, 24, 10), batch=BATCH), (16,))


def lenet():
    """Convolutions, pooling and dense layers."""
    return _of(models.lenet(batch=BATCH), (1, 28, 28))


def resnet():
    """Residual blocks with batch norm."""
    return _of(models.resnet_digits(width=0.25, batch=BATCH), (1, 8, 8))


def transformer():
    """An encoder with embeddings, attention and a mask."""
    return exported("bert")


def exported(name):
    """A network that torch has exported."""
    torch = peer("torch")
    inputs, labels = inputs_of(name, torch.float32, BATCH)
    proto = export(build(name).float(), inputs, training=True, dynamic=False)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return Case(gg.from_onnx(proto), arrays, labels.numpy())


def residual(network):
    """A residual network of ImageNet's shape, narrow and for small images."""
    return _of(network(width=0.125, size=32, classes=10, batch=BATCH), (3, 32, 32))


def te_op():
    """A tensor expression of a user's, whose gradient is derived."""
    return _of(derived_nets.te_op(), (derived_nets.FEATURES,))


def scan():
    """A loop over time by `gg.scan`."""
    return _of(derived_nets.scan(), (derived_nets.TIMES, derived_nets.FEATURES))


def gru():
    """ONNX's GRU in both directions."""
    return _of(derived_nets.gru(), (derived_nets.TIMES, derived_nets.FEATURES))


def lstm():
    """ONNX's LSTM."""
    return _of(derived_nets.lstm(), (derived_nets.TIMES, derived_nets.FEATURES))


FAMILIES = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet_digits": resnet,
    **{name: partial(exported, name) for name in NETWORKS},
    "resnet18": partial(residual, models.resnet18),
    "resnet50": partial(residual, models.resnet50),
    "te_op": te_op,
    "scan": scan,
    "lstm": lstm,
    "gru": gru,
}
"""Every family by name; the deeper residual networks are made of the parts of these."""

SMOOTH = ("vit", "bert", "scan", "lstm", "gru")
"""Families that make no choices: a small error stays small."""

WITHOUT_LIBRARY = ("te_op",)
"""Families in which nothing is left to a library."""


def _of(proto, shape):
    generator = np.random.default_rng(1)
    model = gg.from_onnx(proto, custom_ops=derived_nets.CUSTOM_OPS)
    x = generator.standard_normal((BATCH, *shape)).astype("float32")
    return Case(model, {model.inputs[0]: x}, generator.integers(0, 10, BATCH))
