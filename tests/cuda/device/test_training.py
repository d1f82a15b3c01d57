"""Training on a CUDA device follows training on the host.

In float64 everything that a step holds stays within 1e-10 of the host's, relative to the largest
number of a tensor. In float32 it is at most four times as far from float64 as the host's is.
"""

import gc
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad.lower.device import cuda_architecture
from tests.cuda.device import nets
from tests.cuda.device.running import gpu, twice

STEPS = 3
FLOOR = 1e-6
"""Distance to float64, relative to all parameters, below which float32 is as good as exact."""


@cache
def case(name, dtype="float32"):
    given = getattr(nets, name)()
    return given if dtype == "float32" else given.promoted()


def step_of(name, dtype="float32", **options):
    optimizer = gg.optim.SGD(0.05, momentum=0.9)
    return gg.train_step(case(name, dtype).model, optimizer=optimizer, **options)


def train(step, given):
    """Make some steps; return the losses and everything that the step then holds."""
    losses = [float(step(given.inputs, given.labels)) for _ in range(STEPS)]
    groups = {"params": step.params, "state": step.state, **step.optimizer_state}
    arrays = {f"{group} {name}": a for group, held in groups.items() for name, a in held.items()}
    return {"losses": np.array(losses), **arrays}


@cache
def on_host(name, dtype):
    return train(step_of(name, dtype), case(name, dtype))


def on_device(name, dtype, path):
    """Train on the device; go back by a checkpoint, and train again."""
    step, names = step_of(name, dtype, target=gpu()), []
    step.save(path)

    def run():
        step.load(path)
        reached = train(step, case(name, dtype))
        names[:] = reached
        return list(reached.values())

    return dict(zip(names, twice(run), strict=True))


def distance(reached, exact):
    """Return the distance of all parameters to the exact ones, relative to these."""
    names = [name for name in exact if name.startswith("params")]
    apart = sum(np.sum((reached[name].astype("float64") - exact[name]) ** 2) for name in names)
    return np.sqrt(apart / sum(np.sum(exact[name] ** 2) for name in names))


@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        "te_op",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("lenet", "transformer", "scan", "gru")),
    ],
)
def test_float64(name, tmp_path):
    expected, reached = on_host(name, "float64"), on_device(name, "float64", tmp_path / "start")
    assert set(reached) == set(expected)
    for key, value in expected.items():
        scale = max(np.abs(value).max(), 1e-6)
        np.testing.assert_allclose(reached[key], value, rtol=0, atol=1e-10 * scale, err_msg=key)


@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet", "te_op", "scan"))],
)
def test_float32(name, tmp_path):
    exact = on_host(name, "float64")
    bound = 4 * max(distance(on_host(name, "float32"), exact), FLOOR)
    assert distance(on_device(name, "float32", tmp_path / "start"), exact) <= bound


@pytest.fixture(scope="module")
def perceptron():
    """A step that has been compiled."""
    step = step_of("mlp", target=gpu())
    step(case("mlp").inputs, case("mlp").labels)
    return step


def test_donated_tensors_stay_where_they_are(perceptron):
    def places():
        tensors = perceptron._tensors
        owned = [tensors.params, tensors.state, *tensors.slots.values()]
        return [tensor.data_ptr() for group in owned for tensor in group.values()]

    before, weight = places(), perceptron.params["fc1.weight"]
    perceptron(case("mlp").inputs, case("mlp").labels)
    assert places() == before
    assert not np.array_equal(perceptron.params["fc1.weight"], weight)


def test_inputs_on_the_device_are_used_where_they_are(perceptron, tmp_path):
    given = case("mlp")
    perceptron.save(tmp_path / "here")
    expected = float(perceptron(given.inputs, given.labels))
    perceptron.load(tmp_path / "here")
    on_device = {n: tvm.runtime.tensor(a, tvm.cuda()) for n, a in given.inputs.items()}
    assert float(perceptron(on_device, given.labels)) == expected


def test_a_step_that_is_not_finite_changes_nothing(perceptron):
    given, before = case("mlp"), perceptron.params
    skipped = perceptron.skipped
    inputs = {name: np.full_like(array, np.nan) for name, array in given.inputs.items()}
    assert np.isnan(float(perceptron(inputs, given.labels)))
    assert perceptron.skipped == skipped + 1
    for name, array in perceptron.params.items():
        assert array.tobytes() == before[name].tobytes()


@contextmanager
def no_memory():
    """While inside, all memory of the device is taken."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    taken, size = [], 1 << 36
    while size >= 256:
        try:
            taken.append(tvm.runtime.empty((size,), "uint8", tvm.cuda()))
        except RuntimeError:
            size //= 2
    yield
    taken.clear()


def test_out_of_memory_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHGRAD_EMULATOR_MEMORY", str(64 << 20))  # faster to take than 8 GiB
    given = case("mlp")
    # A step that is recorded would keep its memory from the first call on.
    perceptron = gg.train_step(
        given.model, optimizer=gg.optim.SGD(0.05, momentum=0.9), target=gpu(), cuda_graph=False
    )
    before = perceptron.params
    perceptron.save(tmp_path / "here")
    expected = float(perceptron(given.inputs, given.labels))
    perceptron.load(tmp_path / "here")
    with no_memory(), pytest.raises(gg.DeviceError, match="out of memory"):
        perceptron(given.inputs, given.labels)
    for name, array in perceptron.params.items():
        assert array.tobytes() == before[name].tobytes()
    assert float(perceptron(given.inputs, given.labels)) == expected


def test_code_for_a_newer_architecture_is_refused():
    newest = "sm_121"
    if cuda_architecture() == newest:
        pytest.skip("nothing is newer than this device")
    with pytest.raises(gg.DeviceError, match=newest):
        gg.train_step(case("mlp").model, target={"kind": "cuda", "arch": newest})


def test_gradients():
    given = case("mlp")
    arrays = {**given.inputs, "targets": given.labels}
    results = [
        gg.value_and_grad(given.model, loss="cross_entropy", target=target)(arrays)[1]
        for target in ("llvm", gpu())
    ]
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-4, atol=1e-6)
