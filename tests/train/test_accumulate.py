"""A step of several micro-batches: one big batch, where nothing couples the examples of a batch."""

import functools

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ArgumentError, CheckpointError
from graphgrad.train import checkpoint
from tests.frontend.graphs import model_of, random
from tests.peers import peer
from tests.promoted_models import promoted
from tests.train.nets import held, module, normalized, perceptron
from tests.train.test_dropout import network as dropping

MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)
EXACT = {"rtol": 1e-12, "atol": 1e-14}


def wide(nodes, inputs, outputs, arrays):
    """Return a model of float64."""
    return promoted(gg.from_onnx(model_of(nodes, inputs, outputs, arrays)))


@functools.cache
def linear():
    """A layer in float64: inputs (N, 4), three classes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    return wide(nodes, {"x": ["N", 4]}, {"y": ["N", 3]}, {"w": random(4, 3), "b": random(3)})


def rows(count=8, seed=0, dtype="float64"):
    """Return examples for `linear`, with labels."""
    return random(count, 4, seed=seed, dtype=dtype), (np.arange(count) + seed) % 3


def images(count=4, seed=0, dtype="float32"):
    """Return examples for `normalized`, with labels."""
    return random(count, 2, 5, 5, seed=seed, dtype=dtype), np.arange(count) % 4


def parts(arrays, sizes):
    """Yield some arrays cut into micro-batches of some sizes."""
    start = 0
    for size in sizes:
        yield tuple(array[start : start + size] for array in arrays)
        start += size


def window(step, arrays, sizes):
    """Make one step of micro-batches; return the losses."""
    return [step(*part) for part in parts(arrays, sizes)]


def assert_alike(step, other, **tolerance):
    """Assert that two steps hold the same parameters, statistics and buffers."""
    for mine, theirs in zip(groups(step), groups(other), strict=True):
        for name, array in theirs.items():
            np.testing.assert_allclose(mine[name], array, **tolerance or EXACT, err_msg=name)


def groups(step):
    return [step.params, step.state, *step.optimizer_state.values()]


def places(step):
    """Return where all tensors are that a step overwrites."""
    tensors = step._tensors
    owned = [tensors.params, tensors.state, *tensors.slots.values()]
    owned += tensors.window.groups.values()
    return [tensor.data_ptr() for members in owned for tensor in members.values()]


# --- one big batch ---


@pytest.mark.parametrize("optimizer", [
    gg.optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    gg.optim.Adam(0.01),
    gg.optim.AdamW(0.01, amsgrad=True, clip_norm=0.1),
    gg.optim.Adagrad(0.01, learning_rate_decay=0.1, clip_value=0.01),
    gg.optim.RMSprop(0.01, centered=True, momentum=0.5),
], ids=lambda optimizer: type(optimizer).__name__)  # fmt: skip
def test_every_optimizer(optimizer):
    """Clipping is of the mean gradient: that of a micro-batch would be cut at another length."""
    one = gg.train_step(linear(), optimizer=optimizer)
    several = gg.train_step(linear(), optimizer=optimizer, accumulate=4)
    for seed in range(3):
        loss = one(*rows(8, seed))
        losses = window(several, rows(8, seed), [2] * 4)
        assert np.mean(losses) == pytest.approx(loss, rel=1e-12)
    assert_alike(several, one)
    assert (several.steps, several.skipped, several.accumulated) == (3, 0, 0)


@pytest.mark.parametrize("loss", [
    "cross_entropy",
    gg.loss.cross_entropy(weight=[1, 2.5, 0.5], ignore_index=2, label_smoothing=0.1),
], ids=["mean", "of labels that count"])  # fmt: skip
def test_micro_batches_of_unequal_size(loss):
    """What the mean of a batch divides by says how much each counts."""
    one, several = (gg.train_step(linear(), loss, MOMENTUM, accumulate=k) for k in (1, 3))
    for seed in range(2):
        one(*rows(8, seed))
        window(several, rows(8, seed), [2, 4, 2])
    assert_alike(several, one)
    assert several.skipped == 0


@pytest.mark.parametrize("loss", [
    gg.loss.cross_entropy(ignore_index=2), gg.loss.nll(weight=[1, 2, 0]),
], ids=["ignored", "without weight"])  # fmt: skip
def test_a_micro_batch_without_labels_that_count(loss):
    """Its mean is 0 / 0. It adds nothing, and a window of none else changes nothing."""
    one, several = (gg.train_step(linear(), loss, MOMENTUM, accumulate=k) for k in (1, 3))
    x, _ = rows(6)
    labels = np.array([0, 1, 2, 2, 1, 0])
    one(x, labels)
    losses = window(several, (x, labels), [2, 2, 2])
    assert np.isnan(losses[1]) and np.isfinite(losses[::2]).all() and losses[2].applied
    assert_alike(several, one)
    before = held(several)
    window(several, (x, np.full(6, 2)), [2, 2, 2])
    assert held(several) == before and (several.steps, several.skipped) == (2, 1)


def test_batch_norm_sees_each_micro_batch_alone():
    """As in PyTorch: gradients are averaged, statistics move with each.

    apache/mxnet#18499: the gradients of scale and shift were overwritten, or not written at all.
    """
    torch = peer("torch")
    model = promoted(normalized())
    step = gg.train_step(model, optimizer=gg.optim.SGD(0.1), accumulate=3)
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4))
    net.double()
    with torch.no_grad():
        net[0].weight.copy_(torch.from_numpy(model.params["conv.weight"]))
    arrays, sizes = images(8, dtype="float64"), [2, 4, 2]
    variance = np.ones(4)
    for part, (x, y) in zip(window(step, arrays, sizes), parts(arrays, sizes), strict=True):
        convolved = net[0](torch.from_numpy(x))
        logits = torch.relu(net[1](convolved)).mean((2, 3))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
        (loss * len(x) / 8).backward()
        variance = 0.9 * variance + 0.1 * convolved.var((0, 2, 3), correction=0).detach().numpy()
        assert part == pytest.approx(loss.item(), rel=1e-12)
    torch.optim.SGD(net.parameters(), 0.1).step()
    reached = {"conv.weight": net[0].weight, "bn.weight": net[1].weight, "bn.bias": net[1].bias}
    for name, expected in reached.items():
        np.testing.assert_allclose(step.params[name], expected.detach(), **EXACT, err_msg=name)
    np.testing.assert_allclose(step.state["bn.mean"], net[1].running_mean, rtol=1e-12)
    np.testing.assert_allclose(step.state["bn.var"], variance, rtol=1e-12)


# --- the window is the unit ---


@pytest.fixture(scope="module")
def compiled():
    """A step of four micro-batches with statistics and momentum."""
    return gg.train_step(normalized(), optimizer=MOMENTUM, accumulate=4)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38, 1e30])
def test_a_micro_batch_that_is_not_finite_discards_its_window(step, tmp_path, bad, at):
    """Large numbers overflow a variance, and what it normalizes is then NaN."""
    arrays = images(16)
    window(step, arrays, [4] * 4)
    step.save(tmp_path / "start")
    before, steps, skipped = held(step), step.steps, step.skipped
    wrong = arrays[0].copy()
    wrong[4 * at, 1, 2, 2] = bad
    losses = window(step, (wrong, arrays[1]), [4] * 4)
    assert not np.isfinite(losses[at])
    assert not any(loss.applied for loss in losses)
    assert held(step) == before
    assert (step.steps, step.skipped, step.accumulated) == (steps + 1, skipped + 1, 0)
    good = window(step, arrays, [4] * 4)
    after = held(step)
    step.load(tmp_path / "start")
    assert window(step, arrays, [4] * 4) == good and held(step) == after, "as if it had never been"
    assert after != before


def test_a_statistic_that_is_finite_again_is_not_forgotten():
    """Without momentum the next micro-batch overwrites the statistic that was not finite."""
    arrays = {"scale": np.ones(2), "shift": np.zeros(2), "mean": np.zeros(2), "var": np.ones(2)}
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    node = helper.make_node("BatchNormalization", ["x", *arrays], ["y"], momentum=0.0)
    model = gg.from_onnx(model_of([node], {"x": ["N", 2]}, {"y": ["N", 2]}, arrays))
    step = gg.train_step(model, accumulate=3)
    before, x = held(step), random(6, 2)
    wrong = x.copy()
    wrong[0] = 1e30
    losses = window(step, (wrong, np.arange(6) % 2), [2] * 3)
    assert np.isfinite(losses).tolist() == [False, True, True]
    assert held(step) == before and step.skipped == 1
    window(step, (x, np.arange(6) % 2), [2] * 3)
    assert step.skipped == 1 and held(step) != before


def test_losses_behind_a_bad_micro_batch_are_those_of_the_start():
    """The statistics of the window are not what an earlier window left, or zeros at first."""

    def build(builder, x, w, mean):
        return relax.op.multiply(builder.emit(relax.op.subtract(x, mean)), w)

    mod = module(build, **dict.fromkeys(("x", "w", "mean"), ([2], "float32")))
    model = gg.Model(mod, {"w": np.ones(2, "float32")}, {"mean": np.full(2, 5, "float32")})
    step = gg.train_step(model, "mse", gg.optim.SGD(0.0), accumulate=3)
    x = np.ones(2, "float32")
    losses = [step(each, np.zeros(2)) for each in (x * np.float32(np.nan), x, x)]
    assert np.isnan(losses[0]) and losses[1:] == [16, 16]


def test_a_sum_that_overflows_discards_the_window():
    """Each micro-batch is finite, and so is their mean."""
    mod = module(lambda b, x, w: relax.op.multiply(x, w), x=([2], "float32"), w=([2], "float32"))
    model = gg.Model(mod, {"w": np.zeros(2, "float32")})
    step = gg.train_step(model, "l1", gg.optim.SGD(1.0), accumulate=2)
    x, y = np.full(2, 2e38, "float32"), np.full(2, -1.0)
    step(x, y), step(x, y)
    assert step.skipped == 1 and not step.params["w"].any()
    step(x / 4, y), step(x / 4, y)
    assert step.skipped == 1 and step.params["w"].all()


def test_until_its_end_a_window_changes_nothing(step):
    """Evaluations use the parameters and the statistics of its start."""
    x, _ = images(4)
    before, outputs = held(step), step.evaluate(x)["logits"]
    for index, part in enumerate(parts(images(16), [4] * 3), 1):
        loss = step(*part)
        assert not loss.applied and step.accumulated == index
        assert held(step) == before
        np.testing.assert_array_equal(step.evaluate(x)["logits"], outputs)
    assert step(*images(4)).applied and step.accumulated == 0
    assert all(a != b for a, b in zip(held(step).values(), before.values(), strict=True))


def test_a_dropped_window_has_never_been(step, tmp_path):
    arrays = images(16)
    step.save(tmp_path / "start")
    expected = window(step, arrays, [4] * 4), held(step)
    step.load(tmp_path / "start")
    steps = step.steps
    step(*images(4, seed=5)), step(images(4)[0] * np.float32(np.nan), images(4)[1])
    step.discard()
    assert (step.accumulated, step.steps) == (0, steps)
    assert (window(step, arrays, [4] * 4), held(step)) == expected
    assert step.skipped == 0


def test_a_step_alone_has_no_window():
    step = gg.train_step(perceptron())
    assert (step.accumulate, step.accumulated) == (1, 0)
    step.discard()
    assert step._tensors.window is None


def test_the_rate_is_that_of_the_end(step, tmp_path):
    step.save(tmp_path / "start")
    arrays = images(16)
    window(step, arrays, [4] * 4)
    expected = held(step)
    step.load(tmp_path / "start")
    rate = step.learning_rate
    for index, part in enumerate(parts(arrays, [4] * 4)):
        step.learning_rate = rate if index == 3 else 7.0
        step(*part)
    assert held(step) == expected


def test_each_micro_batch_drops_anew():
    model, y = dropping(), random(8, 3, seed=2)
    x = random(8, 6, seed=1)
    one = gg.train_step(model, "mse", gg.optim.SGD(0.0), seed=3)
    several = gg.train_step(model, "mse", gg.optim.SGD(0.0), seed=3, accumulate=2)
    losses = [several(x, y) for _ in range(4)]
    assert losses == [one(x, y) for _ in range(4)] and len(set(losses)) == 4


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, "2", None, True, [2]])
def test_bad_counts(count):
    with pytest.raises(ArgumentError, match="accumulate="):
        gg.train_step(perceptron(), accumulate=count)


# --- memory ---


def test_everything_is_updated_in_place(step):
    window(step, images(16), [4] * 4)
    old, before = places(step), held(step)
    for part in parts(images(16), [4] * 4):
        step(*part)
        assert places(step) == old
    assert held(step) != before


def test_what_it_returns_is_nobody_elses(step):
    """Copies may be written to, and keep their values while the step goes on."""
    x, _ = images(4)
    losses = window(step, images(16), [4] * 4)
    before = held(step)
    shown = [*groups(step), step.evaluate(x)]
    kept = [float(loss) for loss in losses]
    for group in shown:
        for array in group.values():
            array[...] = 7
    assert held(step) == before
    evaluated = step.evaluate(x)
    copies = {name: array.copy() for name, array in {**step.params, **evaluated}.items()}
    arrays = {**step.params, **evaluated}
    window(step, images(16, seed=3), [4] * 4)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, copies[name])
    assert losses == kept


def test_a_loss_that_is_a_parameter_is_a_copy():
    """It is that of the parameters before the step, whose memory the step overwrites."""

    def build(builder, x, w):
        return relax.op.reshape(w, []), relax.op.add(x, x)

    mod = module(build, x=([2], "float32"), w=([1], "float32"))
    model = gg.Model(mod, {"w": np.full(1, 2, "float32")})
    step = gg.train_step(model, model.outputs[0], gg.optim.SGD(0.5), accumulate=2)
    x = np.ones(2, "float32")
    assert [step(x), step(x), step(x)] == [2, 2, 1.5]
    given, tensors = step._call_inputs(x), step._tensors
    owned = [*tensors.of_model(), *tensors.window.everything()]
    forward = step._forward(given)
    function = step._functions.step(given.shapes, forward, step._compile_updating)
    loss = function(*given.tensors.values(), tensors.window.opens, *owned)[0]
    assert loss.data_ptr() not in [tensor.data_ptr() for tensor in owned]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    """In half precision 2048 + 1 is 2048."""
    mod = module(lambda b, x, w: relax.op.multiply(x, w), x=([1], dtype), w=([1], dtype))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    step = gg.train_step(
        gg.Model(mod, {"w": np.zeros(1, kind)}), "l1", gg.optim.SGD(1.0), accumulate=9
    )
    for value in (2048, *[1] * 8):
        step(np.full(1, value, kind), np.full(1, -1.0))
    accumulator = step._tensors.window.groups["accumulators"]["w"]
    assert str(accumulator.dtype) == "float32" and accumulator.numpy() == 2056
    assert step.params["w"] == np.full(1, -2056 / 9).astype(kind)


# --- checkpoints ---


def test_resuming_in_a_window_is_bit_identical(step, tmp_path):
    arrays = images(16)
    for part in list(parts(arrays, [4] * 4))[:3]:
        step(*part)
    step.save(tmp_path / "open", {"at": 3})
    rest = [step(*images(4, seed=seed)) for seed in range(6)]
    expected = held(step), step.steps, step.accumulated
    other = gg.train_step(normalized(), optimizer=MOMENTUM, accumulate=4)
    other._functions = step._functions  # compiled functions keep nothing
    for resumed in (step, other):
        resumed(*images(4, seed=9))
        assert resumed.load(tmp_path / "open") == {"at": 3}
        assert resumed.accumulated == 3
        assert [resumed(*images(4, seed=seed)) for seed in range(6)] == rest
        assert (held(resumed), resumed.steps, resumed.accumulated) == expected


def test_an_open_window_is_of_its_accumulate_alone(step, tmp_path):
    step(*images())
    step.save(tmp_path / "open")
    for accumulate in (1, 3):
        other = gg.train_step(normalized(), optimizer=MOMENTUM, accumulate=accumulate)
        before = held(other)
        with pytest.raises(CheckpointError, match=r"1 of 4 micro-batches.*accumulate=4"):
            other.load(tmp_path / "open")
        assert held(other) == before


def test_between_windows_a_checkpoint_knows_no_window(step, tmp_path):
    window(step, images(16), [4] * 4)
    step.save(tmp_path / "closed")
    one = gg.train_step(normalized(), optimizer=MOMENTUM)
    one.load(tmp_path / "closed")
    assert held(one) == held(step) and one.steps == step.steps
    one.save(tmp_path / "one")
    files = [checkpoint.read(tmp_path / name) for name in ("one", "closed")]
    assert files[0][1] == files[1][1] and files[0][0].keys() == files[1][0].keys()
    step(*images())
    step.load(tmp_path / "one")
    assert step.accumulated == 0
