"""Steps whose convolutions are computed channels last: nobody can tell, but for the time it takes.

The same step with everything as the model has it is the reference.
"""

import numpy as np
import pytest
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.ir.write import write_program
from graphgrad.layout.choice import MODEL_LAYOUT
from graphgrad.runtime import ExportedStep
from graphgrad.train.forward import FORWARD
from graphgrad.train.update import STEP
from tests.frontend.graphs import model_of, random

ADAM = gg.optim.AdamW(
    0.01, weight_decay=0.1, clip_norm=1.0, groups=[gg.optim.group(max_rank=1, weight_decay=0.0)]
)
WEIGHTS = {
    "stem.weight": (4, 3, 3, 3),
    "deep.weight": (4, 1, 3, 3),
    "point.weight": (6, 4, 1, 1),
    "up.weight": (6, 4, 2, 2),
    "tied.weight": (8, 8, 3, 3),
    "both.weight": (8, 8, 1, 1),
    "scale": (8, 1, 1),
    "fc.weight": (5, 128),
}


def network():
    """A small U-net in float64: each kind of convolution, and a weight that is used otherwise."""
    double = {"dtype": "float64"}
    arrays = {n: 0.4 * random(*s, seed=i, **double) for i, (n, s) in enumerate(WEIGHTS.items())}
    norm = {"gamma": random(4, **double) + 2, "beta": random(4, **double)}
    norm |= {"mean": np.zeros(4), "var": np.ones(4)}

    def node(op_type, inputs, output, **attributes):
        return helper.make_node(op_type, inputs.split(), output.split(), name=output, **attributes)

    nodes = [
        node("Conv", "x stem.weight", "stem", pads=[1] * 4),
        node("BatchNormalization", "stem gamma beta mean var", "norm"),
        node("Sigmoid", "norm", "active"),
        node("MaxPool", "active", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "pooled deep.weight", "deep", pads=[1] * 4, group=4),
        node("Conv", "deep point.weight", "point"),
        node("ConvTranspose", "point up.weight", "up", strides=[2, 2]),
        node("Concat", "active up", "joined", axis=1),
        node("Conv", "joined tied.weight", "tied1", pads=[1] * 4),
        node("Tanh", "tied1", "bent"),
        node("Conv", "bent tied.weight", "tied2", pads=[1] * 4, strides=[2, 2]),
        node("Mul", "tied2 scale", "scaled"),
        node("Conv", "scaled both.weight", "mixed"),
        node("ReduceSum", "both.weight", "total", keepdims=0),
        node("Add", "mixed total", "image"),
        node("Flatten", "image", "flat"),
        node("Gemm", "flat fc.weight", "logits", transB=1),
    ]
    proto = model_of(nodes, {"x": ["N", 3, 8, 8]}, {"logits": ["N", 5]}, {**arrays, **norm})
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return gg.from_onnx(proto)


STORED = ["stem.weight", "deep.weight", "point.weight", "up.weight", "tied.weight"]
X, Y = random(4, 3, 8, 8, seed=9, dtype="float64"), np.arange(4)
VALUES = ["stem", "norm", "active", "up", "joined", "bent", "scaled", "image", "flat", "x"]


@pytest.fixture
def as_in_model(monkeypatch):
    """Return a function after which steps and gradients leave the layout alone."""

    def switch():
        monkeypatch.setattr(
            "graphgrad.train.recipe.layout_for", lambda target, on_tensor_cores: MODEL_LAYOUT
        )

    return switch


def step_of(**options):
    return gg.train_step(network(), optimizer=ADAM, **options)


def everything(step):
    return {"params": step.params, "state": step.state, **step.optimizer_state}


def assert_same(ours, reference, tolerance=1e-10):
    assert {g: list(m) for g, m in ours.items()} == {g: list(m) for g, m in reference.items()}
    for group, members in reference.items():
        for name, array in members.items():
            np.testing.assert_allclose(
                ours[group][name], array, rtol=tolerance, atol=tolerance, err_msg=name
            )


def permutations(mod, name):
    """Return the shapes of images that a function permutes."""
    shapes = []

    def note(call):
        if call.op.name == "relax.permute_dims" and len(call.ty.shape) > 2:
            shapes.append(tuple(map(int, call.ty.shape)))

    tvm_ffi.structural_walk(mod[name], (relax.Call, note))
    return shapes


def test_steps_statistics_buffers_and_evaluations(as_in_model, tmp_path):
    step = step_of()
    assert list(step._recipe.layout.storage) == STORED
    losses = [float(step(X, Y)) for _ in range(3)]
    step.save(tmp_path / "ours")
    as_in_model()
    plain = step_of()
    assert not plain._recipe.layout.storage
    np.testing.assert_allclose([float(plain(X, Y)) for _ in range(3)], losses, rtol=1e-10)
    assert_same(everything(step), everything(plain))
    np.testing.assert_allclose(step.evaluate(X)["logits"], plain.evaluate(X)["logits"], rtol=1e-10)
    # Files have no layout: each step goes on from the other's.
    plain.save(tmp_path / "plain")
    plain.load(tmp_path / "ours")
    step.load(tmp_path / "plain")
    assert float(step(X, Y)) == pytest.approx(float(plain(X, Y)), rel=1e-10)
    assert_same(everything(step), everything(plain))


def test_windows(as_in_model, tmp_path):
    """Saved in the middle of a window, and gone on with in the other layout."""
    batches = [(np.roll(X, k, axis=0)[:2], np.roll(Y, k)[:2]) for k in range(3)]
    step = step_of(accumulate=3)
    for batch in batches[:2]:
        step(*batch)
    step.save(tmp_path / "open")
    step(*batches[2])
    as_in_model()
    plain = step_of(accumulate=3)
    plain.load(tmp_path / "open")
    assert plain.accumulated == 2
    plain.save(tmp_path / "plain")
    plain(*batches[2])
    assert_same(everything(step), everything(plain))
    step.load(tmp_path / "plain")
    step(*batches[2])
    assert_same(everything(step), everything(plain))


def test_exports(tmp_path):
    step = step_of(accumulate=2)
    step(X, Y)
    step.export(tmp_path / "export")
    exported = ExportedStep(tmp_path / "export")
    assert_same(everything(exported), everything(step), tolerance=0)
    step(X, Y)
    exported(X, Y)
    exported.save(tmp_path / "state")
    assert_same(everything(exported), everything(step), tolerance=0)
    exported.load(tmp_path / "state")
    step.load(tmp_path / "state")
    assert float(exported(X, Y)) == float(step(X, Y))
    assert_same(everything(exported), everything(step), tolerance=0)
    np.testing.assert_array_equal(exported.evaluate(X)["logits"], step.evaluate(X)["logits"])


def test_gradients_of_values_that_are_named(as_in_model):
    model = network()
    names = [*VALUES, *model.trainable()]
    ct = random(4, 5, seed=3, dtype="float64")
    outputs, gradients = gg.value_and_grad(model, names, training=True)(X, ct)
    as_in_model()
    expected = gg.value_and_grad(network(), names, training=True)(X, ct)
    assert_same({"outputs": outputs, "gradients": gradients}, dict(zip(
        ["outputs", "gradients"], expected, strict=True
    )))  # fmt: skip


@pytest.mark.slow
def test_a_resnet_in_float32(as_in_model):
    model = gg.from_onnx(models.resnet_digits(activation="silu", batch=8))
    x, y = random(8, 1, 8, 8), np.arange(8) % 10
    step = gg.train_step(model)
    losses = [float(step(x, y)) for _ in range(3)]
    as_in_model()
    plain = gg.train_step(model)
    np.testing.assert_allclose([float(plain(x, y)) for _ in range(3)], losses, rtol=1e-5)
    assert_same(everything(step), everything(plain), tolerance=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_what_a_resnet_permutes(name):
    """The images, once; no value of the network, and no gradient."""
    made = gg.train_step(gg.from_onnx(getattr(models, name)(batch=2)))._recipe
    forward = made.forward([])
    written = write_program(forward.program, FORWARD)
    assert permutations(written, FORWARD) == [(2, 224, 224, 3)]
    assert permutations(made.step(forward), STEP) == [(2, 224, 224, 3)]
    assert permutations(made.evaluation([]), FORWARD) == [(2, 224, 224, 3)]
