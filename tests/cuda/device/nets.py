"""Models that train on the device in tests, each with a batch."""

from dataclasses import dataclass

import numpy as np

import graphgrad as gg
from graphgrad import models
from tests import derived_nets
from tests.peers import peer
from tests.promoted_models import promoted
from tests.torch_export import build, export, inputs_of

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
    torch = peer("torch")
    inputs, labels = inputs_of("bert", torch.float32, BATCH)
    proto = export(build("bert").float(), inputs, training=True, dynamic=False)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return Case(gg.from_onnx(proto), arrays, labels.numpy())


def te_op():
    """A tensor expression of a user's, whose gradient is derived."""
    return _of(derived_nets.te_op(), (derived_nets.FEATURES,))


def scan():
    """A loop over time by `gg.scan`."""
    return _of(derived_nets.scan(), (derived_nets.TIMES, derived_nets.FEATURES))


def gru():
    """ONNX's GRU in both directions."""
    return _of(derived_nets.gru(), (derived_nets.TIMES, derived_nets.FEATURES))


def _of(proto, shape):
    generator = np.random.default_rng(1)
    model = gg.from_onnx(proto, custom_ops=derived_nets.CUSTOM_OPS)
    x = generator.standard_normal((BATCH, *shape)).astype("float32")
    return Case(model, {model.inputs[0]: x}, generator.integers(0, 10, BATCH))
