"""The optimizers on the node tests of ONNX's training operators.

ONNX's T counts the updates before this one. Its Adam adds ε to the root before the correction,
ours after it, as PyTorch's does; so ε is given in ours as ε / √(1 − β₂ᵗ). At T = 0 it makes no
correction, which is what ours comes to after many updates.
"""

import importlib
import warnings

import numpy as np
import pytest
import tvm
from onnx import helper
from onnx.backend.test.case import node as node_tests
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.write import write_function

NAMES = [
    "test_adagrad",
    "test_adagrad_multiple",
    "test_adam",
    "test_adam_multiple",
    "test_momentum",
    "test_momentum_multiple",
    "test_nesterov_momentum",
]
SLOTS = {
    "Adagrad": ["squares"],
    "Adam": ["first_moment", "second_moment"],
    "Momentum": ["momentum"],
}
MANY = 1e9


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated arithmetic in the tests themselves
        # Not by `collect_testcases`: it imports, and so computes, the tests of all operators.
        for module in ("adagrad", "adam", "momentum"):
            importlib.import_module(f"{node_tests.__name__}.{module}")
    return {case.name: case for case in node_tests._NodeTestCases if case.name in NAMES}


def adagrad(settings, count):
    decay = settings.get("decay_factor", 0.0)
    optimizer = gg.optim.Adagrad(
        0.0,
        learning_rate_decay=decay,
        weight_decay=settings["norm_coefficient"],
        epsilon=settings["epsilon"],
    )
    return optimizer, count + 1


def adam(settings, count):
    update = count if count > 0 else MANY
    beta1, beta2 = settings["alpha"], settings["beta"]
    assert not settings.get("norm_coefficient_post", 0.0)
    optimizer = gg.optim.Adam(
        0.0,
        betas=(beta1, beta2),
        weight_decay=settings.get("norm_coefficient", 0.0),
        epsilon=settings.get("epsilon", 1e-6) / np.sqrt(1 - beta2**update),
    )
    return optimizer, update


def momentum(settings, count):
    nesterov = settings["mode"] == b"nesterov"
    optimizer = gg.optim.SGD(
        0.0,
        momentum=settings["alpha"],
        weight_decay=settings["norm_coefficient"],
        dampening=1.0 - settings["beta"],
        nesterov=nesterov,
    )
    return optimizer, count + 1


MAKE = {"Adagrad": adagrad, "Adam": adam, "Momentum": momentum}


def updated(optimizer, rate, update, arrays):
    """Run one update of a parameter; `arrays` are parameter, gradient and buffers."""
    params = [
        relax.Var(name, relax.TensorType(a.shape, str(a.dtype))) for name, a in arrays.items()
    ]

    def body(emitter):
        parameter, gradient, *buffers = map(emitter.lift, params)
        slots = dict(zip(optimizer.slots, buffers, strict=True))
        scalars = [emitter.full(value, [], "float64") for value in (rate, update)]
        moved, new = optimizer.emit(parameter, gradient, slots, *scalars)
        return (moved, *(new[slot] for slot in optimizer.slots))

    mod = write_function(tvm.IRModule(), "update", params, body)
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    return flat(machine["update"](*map(to_tensor, arrays.values())))


@pytest.mark.parametrize("name", NAMES)
def test_node_test(cases, name):
    case = cases[name]
    node = case.model.graph.node[0]
    settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    (rate, count, *tensors), expected = map(list, case.data_sets[0])
    slots = SLOTS[node.op_type]
    optimizer, update = MAKE[node.op_type](settings, int(count))
    groups = len(tensors) // (2 + len(slots))
    for index in range(groups):
        # All parameters stand first, then all gradients, then the buffers, kind by kind.
        arrays = dict(zip(["parameter", "gradient", *slots], tensors[index::groups], strict=True))
        results = updated(optimizer, float(rate), float(update), arrays)
        for ours, theirs in zip(results, expected[index::groups], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
