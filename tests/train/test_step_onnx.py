"""A training step as ONNX: onnxruntime follows `train_step`, and so does onnx's evaluator.

Float32 is judged on networks with SiLU: with ReLU one activation that rounding moves across zero
moves the whole gradient, and a hundred steps make a hundred of that (`test_resnet_follows_torch`).
The network with ReLU is judged in float64, where rounding is too small to show.
"""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import graphgrad as gg
from graphgrad import models
from graphgrad.train import gradient_onnx
from graphgrad.train.data import digits
from tests.frontend.graphs import model_of, random
from tests.promoted_models import promoted
from tests.train import nets
from tests.train.test_gradient_onnx import session

SMALL = {"layers": 2, "width": 16, "heads": 4, "feed_forward": 32, "sequence": 8, "dropout": 0.1}


class FileStep:
    """Steps by a file, in onnxruntime or in onnx's evaluator, with the state that they hand on."""

    def __init__(self, proto, path=None):
        self.runner = ReferenceEvaluator(proto) if path is None else session(path)
        self.names = [output.name for output in proto.graph.output]
        values = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
        self.state = {
            n.removesuffix(".next"): values[n.removesuffix(".next")] for n in self.names[1:]
        }
        self.seeds = [x.name for x in proto.graph.input if x.name == "seed"]

    def __call__(self, batch, **settings):
        for seed in self.seeds:
            settings.setdefault(seed, np.array(self.state["updates"], "int64"))
        settings = {name: np.asarray(value) for name, value in settings.items()}
        loss, *new = self.runner.run(None, {**batch, **settings, **self.state})
        self.state = {
            name.removesuffix(".next"): array
            for name, array in zip(self.names[1:], new, strict=True)
        }
        return float(loss)


def both(model, tmp_path, *arguments, **settings):
    """Return a step of ours and the same by a file."""
    path = tmp_path / "step.onnx"
    proto = gg.step_to_onnx(model, path, *arguments, **settings)
    onnx.checker.check_model(str(path), full_check=True)
    return gg.train_step(model, *arguments, **settings), FileStep(proto, path)


def owned(step):
    """Return all that a step owns, by the names of the file."""
    buffers = {
        f"{name}.{slot}": array
        for slot, members in step.optimizer_state.items()
        for name, array in members.items()
    }
    return {**step.params, **step.state, **buffers}


def assert_same_state(step, by_file, tolerance):
    for name, array in owned(step).items():
        if name in by_file.state:
            scale = max(float(np.abs(array).max()), 1e-3)
            np.testing.assert_allclose(by_file.state[name], array, rtol=0, atol=tolerance * scale)


sgd, adam = gg.optim.SGD, gg.optim.Adam
group = gg.optim.group
OPTIMIZERS = [
    sgd(0.1),
    sgd(0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
    sgd(0.1, momentum=0.9, dampening=0.5, clip_value=0.01),
    adam(1e-2, weight_decay=1e-2, amsgrad=True, clip_norm=0.1),
    gg.optim.AdamW(1e-2, groups=[group(max_rank=1, weight_decay=0.0, learning_rate_scale=2.0)]),
    gg.optim.Adagrad(1e-2, learning_rate_decay=0.1, initial_accumulator=0.1),
    gg.optim.RMSprop(1e-2, momentum=0.5, centered=True, weight_decay=1e-2),
]


@pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=[f"{i}-{type(o).__name__}" for i, o in enumerate(OPTIMIZERS)]
)
def test_optimizers(optimizer, tmp_path):
    step, by_file = both(nets.perceptron(), tmp_path, "cross_entropy", optimizer)
    for number in range(5):
        x, y = random(6, 4, seed=number), np.arange(6) % 3
        rate = optimizer.learning_rate / (1 + number)  # of a schedule
        step.learning_rate = rate
        loss = by_file({"input": x, "targets": y}, learning_rate=rate)
        assert loss == pytest.approx(step(x, y), rel=1e-5)
    assert by_file.state["updates"] == 5.0
    assert {f"{name}.next" for name in owned(step)} <= {*by_file.names}
    assert_same_state(step, by_file, 1e-5)


def follow(step, by_file, batches, tolerance):
    """Take steps on batches, and compare losses; return ours."""
    losses = []
    for x, y in batches:
        given = by_file({"input": x, "targets": y})
        losses.append(float(step(x, y)))
        assert given == pytest.approx(losses[-1], abs=tolerance)
    return losses


def digit_batches(count, size, dtype="float32"):
    examples = digits().train
    (x,), y = examples.inputs.values(), examples.targets
    generator = np.random.default_rng(0)
    for _ in range(count):
        chosen = generator.integers(0, len(y), size)
        yield x[chosen].astype(dtype), y[chosen].astype("int64")


@pytest.mark.slow
def test_a_hundred_steps_of_a_transformer_that_drops_values(tmp_path):
    model = gg.from_onnx(models.transformer_encoder(**SMALL))
    step, by_file = both(model, tmp_path, "cross_entropy", gg.optim.AdamW(3e-3))
    projection = random(8, 16, seed=3)
    batches = ((x.reshape(-1, 8, 8) @ projection, y) for x, y in digit_batches(100, 16))
    losses = follow(step, by_file, batches, 1e-4)
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    # The gradient by a bias of keys is zero, and Adam makes steps of what rounding leaves of it.
    for name in [name for name in by_file.state if "in_proj_bias" in name]:
        del by_file.state[name]
    assert_same_state(step, by_file, 1e-3)


def test_first_values_in_a_file_of_their_own(tmp_path):
    paths = [tmp_path / name for name in ("step.onnx", "start.onnx", "alone.onnx")]
    model = nets.perceptron()
    gg.step_to_onnx(model, paths[0], optimizer=adam(1e-2), start=paths[1])
    onnx.checker.check_model(str(paths[1]), full_check=True)
    runner, start = session(paths[0]), session(paths[1])
    state = dict(zip((o.name for o in start.get_outputs()), start.run(None, {}), strict=True))
    inputs = {"input": random(6, 4), "targets": np.arange(6) % 3}
    assert {x.name for x in runner.get_inputs()} == {*inputs, *state}
    gg.step_to_onnx(model, paths[2], optimizer=adam(1e-2))
    expected = session(paths[2]).run(None, inputs)
    for given, array in zip(runner.run(None, {**inputs, **state}), expected, strict=True):
        np.testing.assert_array_equal(given, array)
    with pytest.raises(gg.ArgumentError, match="start"):
        gg.step_to_onnx(model, paths[0], start=paths[0])


@pytest.mark.slow
def test_a_hundred_steps_of_the_residual_network(tmp_path):
    model = gg.from_onnx(models.resnet_digits(activation="silu"))
    step, by_file = both(model, tmp_path, "cross_entropy", sgd(0.01, momentum=0.9))
    losses = follow(step, by_file, digit_batches(100, 32), 1e-4)
    assert losses[-1] < 0.2
    assert_same_state(step, by_file, 1e-3)


def test_what_is_not_finite_changes_nothing(tmp_path):
    _, by_file = both(nets.deep(2, 4), tmp_path, "cross_entropy", adam(1e-2))
    x, y = random(4, 3, 8, 8), np.arange(4)
    by_file({"x": x, "targets": y})
    minus_zero = by_file.state["head"].copy()
    minus_zero[0] = -0.0
    by_file.state["head"] = minus_zero
    before = {name: array.tobytes() for name, array in by_file.state.items()}
    for value in (np.inf, -np.inf, np.nan):
        bad = x.copy()
        bad[2, 1, 3, 3] = value
        by_file({"x": bad, "targets": y})
        assert {name: array.tobytes() for name, array in by_file.state.items()} == before
    by_file({"x": x, "targets": y})
    assert by_file.state["updates"] == 2.0


def test_a_gradient_that_overflows_under_a_finite_loss(tmp_path):
    model = nets.perceptron((4, 3))
    _, by_file = both(model, tmp_path, "mse", sgd(0.1))
    # The loss is at most 1e38; its gradient by the weights is beyond float32.
    x, y = np.full((2, 4), 1e30, "float32"), np.full((2, 3), 1e18, "float32")
    by_file.state |= {name: np.zeros_like(array) for name, array in model.params.items()}
    before = {name: array.tobytes() for name, array in by_file.state.items()}
    assert np.isfinite(by_file({"input": x, "targets": y}))
    assert {name: array.tobytes() for name, array in by_file.state.items()} == before


def test_large_finite_gradients_are_applied(tmp_path):
    """The sum of their squares is beyond float32."""
    step, by_file = both(nets.perceptron((4, 3)), tmp_path, "mse", sgd(1e-30, clip_norm=1e38))
    x, y = np.full((2, 4), 1e12, "float32"), np.full((2, 3), -1e15, "float32")
    by_file({"input": x, "targets": y})
    step(x, y)
    assert by_file.state["updates"] == step.steps == 1
    assert_same_state(step, by_file, 1e-5)


def test_some_parameters_train_and_all_may_be_given(tmp_path):
    model = nets.perceptron()
    step, by_file = both(model, tmp_path, "cross_entropy", sgd(0.1), wrt=["fc2.weight"])
    assert by_file.names == ["loss", "updates.next", "fc2.weight.next"]
    batch = {"input": random(6, 4), "targets": np.arange(6) % 3}
    given = by_file(batch, **{"fc1.bias": np.ones(5, "float32")})
    model.params["fc1.bias"] = np.ones(5, "float32")
    changed = gg.train_step(model, "cross_entropy", sgd(0.1), wrt=["fc2.weight"])
    assert given == pytest.approx(changed(batch["input"], batch["targets"]), rel=1e-5)
    assert given != pytest.approx(step(batch["input"], batch["targets"]), rel=1e-5)


@pytest.mark.slow
def test_in_float64_by_the_evaluator(tmp_path):
    model = promoted(nets.deep(2, 4))
    arguments = "cross_entropy", adam(1e-2, clip_norm=1.0)
    step = gg.train_step(model, *arguments, seed=0)
    by_file = FileStep(gg.step_to_onnx(model, tmp_path / "step.onnx", *arguments))
    batches = ((random(4, 3, 8, 8, seed=n, dtype="float64"), np.arange(4)) for n in range(4))
    for x, y in batches:
        assert by_file({"x": x, "targets": y}) == pytest.approx(step(x, y), rel=1e-12)
    assert_same_state(step, by_file, 1e-10)


@pytest.mark.slow
def test_a_hundred_steps_of_the_residual_network_with_relu_in_float64(tmp_path):
    model = promoted(gg.from_onnx(models.resnet_digits()))
    arguments = "cross_entropy", sgd(0.01, momentum=0.9)
    by_file = FileStep(gg.step_to_onnx(model, tmp_path / "step.onnx", *arguments))
    step = gg.train_step(model, *arguments)
    losses = follow(step, by_file, digit_batches(100, 8, "float64"), 1e-4)
    assert losses[-1] < losses[0]
    assert_same_state(step, by_file, 1e-4)


# Versions, and bad input


def test_dropouts_need_bitwise_operators(tmp_path):
    path = tmp_path / "step.onnx"
    path.write_bytes(b"before")
    with pytest.raises(gg.ArgumentError, match=r"opset=17 cannot say graphgrad.dropout.*18"):
        gg.step_to_onnx(nets.deep(2, 4), path, opset=17)
    assert path.read_bytes() == b"before"
    assert gg.step_to_onnx(nets.deep(2, 4), path).opset_import[0].version == 18
    assert gg.step_to_onnx(nets.perceptron(), path).opset_import[0].version == 17


@pytest.mark.parametrize(
    "arguments",
    [
        {"loss": None},
        {"loss": "nothing"},
        {"optimizer": "sgd"},
        {"optimizer": sgd(0.1, groups=[group("nothing", weight_decay=0.0)])},
        {"wrt": "nothing"},
        {"rules": "none"},
        {"opset": 9},
        {"path": "no/step.onnx"},
    ],
    ids=str,
)
def test_arguments(arguments, tmp_path):
    path = tmp_path / arguments.pop("path", "step.onnx")
    with pytest.raises(gg.ArgumentError):
        gg.step_to_onnx(nets.perceptron(), path, **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "names", [("updates", "w", "v"), ("x", "seed", "updates"), ("x", "w", "w.momentum")], ids=str
)
def test_names_that_the_step_needs(names, tmp_path):
    x, w, v = names
    nodes = [helper.make_node("MatMul", [x, w], ["h"]), helper.make_node("MatMul", ["h", v], ["y"])]
    arrays = {w: random(4, 3), v: random(3, 3)}
    model = gg.from_onnx(model_of(nodes, {x: ["N", 4]}, {"y": ["N", 3]}, arrays))
    with pytest.raises(gg.ArgumentError, match=r"the name '(updates|w\.momentum)'"):
        gg.step_to_onnx(model, tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_would_be_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_onnx, "MAX_FILE_BYTES", 1000)
    with pytest.raises(gg.ModelError, match=r"start.onnx would have .* GB"):
        gg.step_to_onnx(
            nets.perceptron((4, 99)), tmp_path / "s.onnx", start=tmp_path / "start.onnx"
        )
    assert not list(tmp_path.iterdir())


def test_half_precision_is_refused(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model_of([node], {"x": ["N", 4]}, {"y": ["N", 3]}, {"w": np.ones((4, 3), "float16")})
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    with pytest.raises(gg.ArgumentError, match="'w' is float16"):
        gg.step_to_onnx(gg.from_onnx(proto), tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())
