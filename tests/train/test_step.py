import copy
import json
import pickle

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import AliasError, ArgumentError, CheckpointError, InputError
from graphgrad.memory.donation import DONATED_DONE
from graphgrad.train.update import STEP
from tests.frontend.graphs import random
from tests.peers import peer
from tests.train.nets import held, module, normalized, perceptron, staged

MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)
N = tvm.tirx.Var("n", "int64")


def norm_batch(seed=0, count=6):
    return random(count, 2, 5, 5, seed=seed), np.arange(count) % 4


def batch(seed=0):
    return random(8, 4, seed=seed), np.arange(8) % 3


@pytest.fixture(scope="module")
def compiled():
    """A step with statistics and momentum, and the file of its first state."""
    return gg.train_step(normalized(), optimizer=MOMENTUM)


@pytest.fixture(scope="module")
def plain():
    """A step of a perceptron whose bad inputs change nothing."""
    step = gg.train_step(perceptron())
    step(*batch())
    return step


def roots():
    """sqrt(x · w), whose gradient is infinite at 0 while its value is not."""
    mod = module(
        lambda b, x, w: relax.op.sqrt(b.emit(relax.op.multiply(x, w))),
        x=([2], "float32"),
        w=([2], "float32"),
    )
    return gg.train_step(gg.Model(mod, {"w": np.ones(2, "float32")}), "mse", MOMENTUM)


# --- a bad step loses nothing ---


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38, 1e30])
def test_a_non_finite_step_changes_nothing(step, bad):
    """Large numbers overflow the variance, and what it normalizes is then NaN."""
    x, y = norm_batch()
    step(x, y)
    before, steps, skipped = held(step), step.steps, step.skipped
    wrong = x.copy()
    wrong[3, 1, 2, 2] = bad
    loss = step(wrong, y)
    assert not np.isfinite(loss)
    assert held(step) == before
    assert (step.steps, step.skipped) == (steps + 1, skipped + 1)
    assert np.isfinite(step(x, y)) and step.skipped == skipped + 1
    assert all(a != b for a, b in zip(held(step).values(), before.values(), strict=True))


def test_a_finite_loss_with_an_infinite_gradient_changes_nothing():
    step = roots()
    before = held(step)
    assert np.isfinite(step(np.zeros(2, "float32"), np.ones(2)))
    assert held(step) == before and step.skipped == 1
    step(np.ones(2, "float32"), np.zeros(2))
    assert held(step) != before and step.skipped == 1


def test_the_model_does_not_need_every_gradient_to_be_bad():
    """One bad parameter keeps all others from moving too."""
    mod = module(
        lambda b, x, v, w: relax.op.add(b.emit(relax.op.sqrt(v)), b.emit(relax.op.multiply(x, w))),
        x=([2], "float32"),
        v=([2], "float32"),
        w=([2], "float32"),
    )
    params = {"v": np.zeros(2, "float32"), "w": np.ones(2, "float32")}
    step = gg.train_step(gg.Model(mod, params), "mse")
    step(np.ones(2, "float32"), np.zeros(2))
    assert step.skipped == 1
    np.testing.assert_array_equal(step.params["w"], 1)


# --- in place ---


def addresses(step):
    groups = (step._tensors.params, step._tensors.state, *step._tensors.slots.values())
    return [tensor.data_ptr() for group in groups for tensor in group.values()]


def test_buffers_are_updated_in_place(step):
    before, old = held(step), addresses(step)
    step(*norm_batch())
    assert addresses(step) == old
    assert all(a != b for a, b in zip(held(step).values(), before.values(), strict=True))


def test_every_donation_is_honored():
    done = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "graphgrad.donate":
                done.extend(mod[STEP].attrs[DONATED_DONE])

    with tvm.transform.PassContext(instruments=[Watch()]):
        gg.train_step(perceptron(), optimizer=MOMENTUM)(*batch())
    assert len(done) == 8  # four parameters and their momentum


def test_memory_shared_with_a_donated_buffer():
    torch = peer("torch")
    step = gg.train_step(perceptron((4, 4, 3)), optimizer=MOMENTUM)
    x, y = random(4, 4), np.arange(4) % 3
    step(x, y)
    before = held(step)
    weight = torch.from_dlpack(step._tensors.params["fc1.weight"])
    velocity = torch.from_dlpack(step._tensors.slots["momentum"]["fc1.weight"])
    for given, owner in [
        (weight, "parameter 'fc1.weight'"),
        (weight.numpy(), "parameter 'fc1.weight'"),
        (velocity, "momentum of 'fc1.weight'"),
        (step._tensors.params["fc1.weight"], "parameter 'fc1.weight'"),
    ]:
        with pytest.raises(AliasError, match=f"input 'input' shares memory with the {owner}"):
            step(given, y)
    assert held(step) == before and step.steps == 1
    step(weight.clone(), y)


# --- copies ---


def test_what_a_step_shows_are_copies(step):
    step(*norm_batch())
    before = held(step)
    for group in (step.params, step.state, step.optimizer_state["momentum"]):
        for array in group.values():
            array[...] = 7
    assert held(step) == before


def test_a_step_copies_the_model():
    model = normalized()
    original = {n: a.copy() for n, a in {**model.params, **model.state}.items()}
    one, two = (gg.train_step(model, optimizer=MOMENTUM) for _ in range(2))
    one(*norm_batch())
    for name, array in {**model.params, **model.state}.items():
        np.testing.assert_array_equal(array, original[name])
    for name, array in {**two.params, **two.state}.items():
        np.testing.assert_array_equal(array, original[name])
    model.params["conv.weight"][...] = 0
    assert two.params["conv.weight"].any()


# --- evaluate ---


def test_evaluate_uses_running_statistics_and_changes_nothing(step):
    x, _ = norm_batch()
    step(*norm_batch())
    before = held(step)
    whole = step.evaluate(x)
    assert list(whole) == ["logits"] and whole["logits"].shape == (6, 4)
    for size in (1, 2):
        np.testing.assert_allclose(
            step.evaluate({"x": x[:size]})["logits"], whole["logits"][:size], rtol=1e-6
        )
    assert held(step) == before and step.steps == 1


def test_evaluate_is_the_exported_model(step, tmp_path):
    runtime = peer("onnxruntime")
    x, y = norm_batch()
    for seed in range(3):
        step(norm_batch(seed)[0], y)
    gg.to_onnx(normalized(), step.params, step.state, tmp_path / "m.onnx")
    (expected,) = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
    np.testing.assert_allclose(step.evaluate(x)["logits"], expected, rtol=1e-5, atol=1e-6)


def test_evaluate_gives_arrays_of_its_own(step):
    x, _ = norm_batch()
    first = step.evaluate(x)["logits"]
    kept = first.copy()
    step.evaluate(x + 1)
    np.testing.assert_array_equal(first, kept)


# --- what comes in ---


@pytest.mark.parametrize("x, y, message", [
    ({"inputs": 0}, 0, r"no input 'inputs', only \['input'\]; did you mean 'input'"),
    ({}, 0, r"missing input\(s\) \['input'\]"),
    (random(8, 4, dtype="float64"), 0, "input 'input': expected dtype float32, given float64"),
    (np.zeros((8, 4), "int64"), 0, "expected dtype float32, given int64"),
    (random(8, 5), 0, r"expected shape \(N, 4\) with N = 8, given \(8, 5\)"),
    (random(4), 0, r"expected shape \(N, 4\).*, given \(4,\)"),
    (np.zeros((0, 4), "float32"), 0, "is empty"),
    (np.array(["a"]), 0, "input 'input'.*not an array"),
    (None, None, "targets are missing"),
    (None, np.arange(8.0), "targets: cross_entropy takes integer labels, given float"),
    (None, np.arange(8), r"label 3 at index \[3\].*3 classes.*0 to 2 \(5 label"),
    (None, np.full(8, -1), r"label -1 at index \[0\]"),
    (None, np.zeros(7, int), r"targets: expected shape \(8,\), given \(7,\)"),
    (None, np.zeros((8, 1), int), r"expected shape \(8,\), given \(8, 1\)"),
    (None, np.array(["cat"] * 8), "targets: .*not an array"),
])  # fmt: skip
def test_bad_input(plain, x, y, message):
    before, steps, buffers = held(plain), plain.steps, staged(plain).keys()
    good, labels = batch()
    with pytest.raises(InputError, match=message):
        plain(good if x is None else x, labels if isinstance(y, int) else y)
    assert held(plain) == before and plain.steps == steps
    assert staged(plain).keys() == buffers, "memory is kept for what was refused"


def test_check_says_what_a_step_would(plain):
    before, steps = held(plain), plain.steps
    x, y = batch()
    plain.check(x, y)
    for wrong in ((x[:, :3], y), (x, y[:4]), (x, y + 1), (x, None)):
        with pytest.raises(InputError):
            plain.check(*wrong)
    assert held(plain) == before and plain.steps == steps


def test_labels_are_checked_before_anything_is_compiled():
    step = gg.train_step(perceptron())
    with pytest.raises(InputError, match="out of range"):
        step(random(8, 4), np.full(8, 9))
    assert not step._functions.shapes


def test_several_inputs_ask_for_names():
    node = onnx.helper.make_node
    from tests.frontend.graphs import model_of

    proto = model_of(
        [node("Mul", ["a", "w"], ["aw"]), node("Add", ["aw", "b"], ["sum"])],
        {"a": ["N", 3], "b": ["N", 3]},
        {"sum": ["N", 3]},
        {"w": np.ones(3, "float32")},
    )
    step = gg.train_step(gg.from_onnx(proto), "mse")
    a, b = random(5, 3), random(5, 3, seed=1)
    assert step({"b": b, "a": a}, np.zeros((5, 3))) == pytest.approx(np.mean((a + b) ** 2))
    with pytest.raises(InputError, match=r"inputs \['a', 'b'\]; give a dict"):
        step(a, a)
    with pytest.raises(InputError, match=r"'b': expected shape \(N, 3\) with N = 5, given \(4, 3"):
        step({"a": a, "b": b[:4]}, a)


# --- save and load ---


def test_resuming_is_bit_identical_to_not_stopping(step, tmp_path):
    def go(from_step, until):
        losses = []
        for index in range(from_step, until):
            step.learning_rate = 0.1 / (1 + index // 3)
            x, y = norm_batch(index)
            losses.append(step(x * np.float32(np.inf if index == 1 else 1), y))
        return losses

    go(0, 4)
    step.save(tmp_path / "half", {"epoch": 2, "order": [3, 1]})
    half, rate = held(step), step.learning_rate
    rest, end = go(4, 8), held(step)
    assert step.load(tmp_path / "half") == {"epoch": 2, "order": [3, 1]}
    assert held(step) == half
    assert (step.steps, step.skipped, step.learning_rate) == (4, 1, rate)
    assert go(4, 8) == rest and held(step) == end


def test_another_process_resumes_alike(tmp_path):
    """Two steps stand for two processes: a file holds all that the next steps depend on."""
    one = gg.train_step(perceptron(), optimizer=MOMENTUM)
    one(*batch(0))
    one.learning_rate = 0.03
    one.save(tmp_path / "c")
    two = gg.train_step(gg.from_onnx(models.mlp((4, 5, 3), seed=9)), optimizer=MOMENTUM)
    two.load(tmp_path / "c")
    assert [two(*batch(i)) for i in range(3)] == [one(*batch(i)) for i in range(3)]
    assert held(two) == held(one)
    assert (two.learning_rate, two.steps) == (0.03, 4)


@pytest.mark.parametrize("optimizer, ok", [
    (gg.optim.SGD(0.5, momentum=0.9), True),
    (gg.optim.SGD(0.1, momentum=0.8), False),
    (gg.optim.SGD(0.1, momentum=0.9, nesterov=True), False),
    (gg.optim.SGD(0.1, momentum=0.9, weight_decay=1e-3), False),
    (gg.optim.SGD(0.1), False),
])  # fmt: skip
def test_the_optimizer_must_match_but_for_its_rate(tmp_path, optimizer, ok):
    gg.train_step(perceptron(), optimizer=MOMENTUM).save(tmp_path / "c")
    step = gg.train_step(perceptron(), optimizer=optimizer)
    if ok:
        step.load(tmp_path / "c")
        assert step.learning_rate == 0.1
    else:
        with pytest.raises(CheckpointError, match="optimizer"):
            step.load(tmp_path / "c")


def test_a_bad_file_changes_nothing(plain, tmp_path):
    before = held(plain), plain.steps, plain.learning_rate
    plain.save(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "flipped").write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    (tmp_path / "short").write_bytes(data[:-5])
    gg.train_step(perceptron((4, 6, 3))).save(tmp_path / "wider")
    gg.train_step(normalized()).save(tmp_path / "other")
    for name in ("flipped", "short", "wider", "other", "missing", "."):
        with pytest.raises(CheckpointError):
            plain.load(tmp_path / name)
    assert (held(plain), plain.steps, plain.learning_rate) == before


def test_a_load_that_lacks_memory_changes_nothing(plain, tmp_path, monkeypatch):
    plain.save(tmp_path / "c")
    plain(*batch())
    plain.learning_rate /= 2
    before = held(plain), plain.steps, plain.skipped, plain.learning_rate

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(tvm.runtime, "empty", full)
    with pytest.raises(MemoryError):
        plain.load(tmp_path / "c")
    assert (held(plain), plain.steps, plain.skipped, plain.learning_rate) == before


def test_setting_the_rate_takes_no_memory(plain, monkeypatch):
    monkeypatch.setattr(tvm.runtime, "empty", None)
    plain.learning_rate *= 2
    assert plain._tensors.rate.numpy() == plain.learning_rate


def test_a_file_that_cannot_be_written(plain, tmp_path):
    with pytest.raises(CheckpointError, match="cannot write"):
        plain.save(tmp_path / "missing" / "c")
    with pytest.raises(ArgumentError, match="JSON"):
        plain.save(tmp_path / "c", {"when": object()})
    with pytest.raises(ArgumentError, match="extra is a list; give a dict"):
        plain.save(tmp_path / "c", [("epoch", 3)])
    assert list(tmp_path.iterdir()) == []


def test_extra_facts_are_text(plain, tmp_path):
    plain.save(tmp_path / "c", {"place": "Zürich", "loss": None})
    assert json.dumps(plain.load(tmp_path / "c"), ensure_ascii=False).count("Zürich") == 1


# --- learning rate ---


@pytest.mark.parametrize("rate", [-0.1, np.nan, np.inf, "0.1", None, True, 1e39, [0.1]])
def test_bad_learning_rates(plain, rate):
    before = plain.learning_rate
    with pytest.raises(ArgumentError, match="learning_rate"):
        plain.learning_rate = rate
    assert plain.learning_rate == before


@pytest.mark.parametrize("rate", [0, 1, 0.5, np.float32(0.25), np.float64(2), np.int64(3)])
def test_good_learning_rates(plain, rate):
    plain.learning_rate = rate
    assert plain.learning_rate == float(rate) and type(plain.learning_rate) is float


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_says_what_to_do_instead(copied):
    with pytest.raises(ArgumentError, match=r"TrainStep cannot be pickled .* step.save\(path\)"):
        copied(gg.train_step(perceptron()))
    with pytest.raises(ArgumentError, match=r"ValueAndGrad cannot be .* pickle the model"):
        copied(gg.value_and_grad(perceptron()))


def test_views_of_tvm_and_masked_arrays():
    """What is at an offset is copied; what is masked is refused, and nothing changes."""
    x, y = batch()
    plain, other = (gg.train_step(perceptron(), optimizer=MOMENTUM) for _ in range(2))
    memory = tvm.runtime.tensor(np.zeros(x.size + 16, "float32"))
    view = memory._create_view(x.shape, "float32", 64)
    np.from_dlpack(view)[...] = x
    assert other(view, y) == plain(x, y)
    before = held(other)
    with pytest.raises(InputError, match=r"input 'input': .* masked array with .* masked values"):
        other(np.ma.masked_greater(x, 0.0), y)
    with pytest.raises(InputError, match=r"targets.*masked array with .*ignore_index"):
        other(x, np.ma.masked_equal(y, 0))
    assert held(other) == before
