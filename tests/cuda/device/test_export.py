"""Exports for a CUDA device, run by TVM's runtime alone on one."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad import models
from graphgrad.runtime import ExportedStep, InputError
from tests.cuda.device import nets
from tests.cuda.device.running import gpu
from tests.exports import run_alone
from tests.train.nets import deep

EXPORTER = """
import sys
import graphgrad as gg
from tests.cuda.device import nets

gg.export_step(nets.mlp().model, sys.argv[1], target={"kind": "cuda", "arch": sys.argv[2]})
"""


def batches(count, seed=0):
    generator = np.random.default_rng(seed)
    return [
        (generator.standard_normal((nets.BATCH, 16), "float32"), generator.integers(0, 10, 4))
        for _ in range(count)
    ]


def check_alone(step, folder, results):
    """Assert that the export goes on as the step does, bit for bit."""
    given = batches(3, seed=1)
    losses, outputs = run_alone(folder, given, results)
    assert losses == [float(step(*each)) for each in given]
    for name, expected in step.evaluate(given[0][0]).items():
        assert outputs[name].tobytes() == expected.tobytes()
    reached = step.params
    step.load(f"{results}.state")
    for name, expected in reached.items():
        assert step.params[name].tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def step():
    return gg.train_step(nets.mlp().model, target=gpu())


@pytest.fixture
def fresh(step, tmp_path):
    """The step before its first call."""
    step.save(tmp_path / "before")
    yield step
    step.load(tmp_path / "before")


def test_where_the_device_is(fresh, tmp_path):
    """The library holds machine code."""
    for each in batches(2):
        fresh(*each)
    fresh.export(tmp_path / "export")
    assert not (tmp_path / "export" / "kernels").exists()
    check_alone(fresh, tmp_path / "export", tmp_path / "results")


def test_where_it_is_not(fresh, tmp_path):
    """The library holds source; its machine code lies beside it.

    TVM is told to behave as if its CUDA runtime were not loaded.
    """
    subprocess.run(
        [sys.executable, "-c", EXPORTER, tmp_path / "export", gpu()["arch"]],
        env={**os.environ, "TVM_COMPILE_FORCE_FALLBACK": "1"}, check=True,
    )  # fmt: skip
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert any(name.startswith("kernels/") for name in manifest["files"])
    check_alone(fresh, tmp_path / "export", tmp_path / "results")


@pytest.fixture(scope="module")
def untrained(step, tmp_path_factory):
    """An export of the step before its first call."""
    folder = tmp_path_factory.mktemp("untrained") / "export"
    step.export(folder, shapes={"input": (nets.BATCH, 16)})
    return folder


def test_tensors_that_are_on_the_device(fresh, untrained):
    exported = ExportedStep(untrained)
    [(x, y)] = batches(1)
    on_device = [tvm.runtime.tensor(array, tvm.cuda()) for array in (x, y)]
    assert float(exported.enqueue(*on_device).numpy()) == float(fresh(x, y))
    with pytest.raises(InputError, match="out of range"):
        exported(x, tvm.runtime.tensor(y + 10, tvm.cuda()))


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_recorded_steps_have_the_bits_of_those_that_are_not(tmp_path, launches, accumulate):
    """With batch norm, dropout and a loss scale, from the host and the device, of two shapes."""
    shapes = [{"x": (count, 3, 8, 8)} for count in (4, 6)]
    gg.export_step(
        deep(blocks=2, channels=4), tmp_path / "export", optimizer=gg.optim.Adam(0.01),
        target=gpu(), shapes=shapes, precision="float16", accumulate=accumulate,
    )  # fmt: skip
    recorded, plain = (ExportedStep(tmp_path / "export") for _ in range(2))
    plain.cuda_graph = False
    generator = np.random.default_rng(0)
    losses, counts = [], []
    for index, count in enumerate([4, 4, 4, 6, 6, 6, 4, 4, 4]):
        x, y = generator.standard_normal((count, 3, 8, 8), "float32"), np.arange(count) % 4
        if index == 2:
            recorded.learning_rate = plain.learning_rate = 0.02
        if index == 7:  # what the graphs overwrite is elsewhere from here on
            recorded.save(tmp_path / "state")
            recorded.load(tmp_path / "state")
        before = len(launches)
        on_device = tvm.runtime.tensor(x, tvm.cuda())
        # Read at the end: a later launch must not overwrite the loss of an earlier one.
        losses.append((recorded.enqueue(on_device if index % 2 else x, y), plain.enqueue(x, y)))
        counts.append(len(launches) - before)
    assert [float(a.numpy()) for a, _ in losses] == [float(b.numpy()) for _, b in losses]
    for name, value in {**plain.params, **plain.state}.items():
        assert value.tobytes() == {**recorded.params, **recorded.state}[name].tobytes(), name
    # The first call with a shape, or with other tensors, is computed as it is; the end of a window
    # is recorded by itself. The memory of the larger shape took the place of that of the smaller.
    assert counts == [0, 1, 1, 0, 1, accumulate, 0, 0, 1]


def test_without_graphs_there_is_nothing_to_record(tmp_path, launches):
    folder = tmp_path / "export"
    gg.export_step(
        nets.mlp().model, folder, target=gpu(), shapes={"input": (4, 16)}, cuda_graph=False
    )
    [entry] = json.loads((folder / "manifest.json").read_text())["entries"]
    assert entry["recorded"] == {}
    exported = ExportedStep(folder)
    assert all(np.isfinite(exported(*each)) for each in batches(3)) and not launches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["te_op", "scan"])
def test_derived_kernels(tmp_path, name):
    """Made in this process, and compiled for the device; run with no graphgrad."""
    case = getattr(nets, name)()
    step = gg.train_step(case.model, target=gpu())
    ((key, x),) = case.inputs.items()
    step.export(tmp_path / "export", shapes={key: x.shape})
    given = [(x, case.labels), (x[::-1].copy(), case.labels), (-x, case.labels)]
    losses, outputs = run_alone(tmp_path / "export", given, tmp_path / "results")
    assert losses == [float(step(*each)) for each in given]
    for key, expected in step.evaluate(x).items():
        assert outputs[key].tobytes() == expected.tobytes()


emulated = pytest.mark.skipif(
    "GRAPHGRAD_EMULATOR" not in os.environ, reason="sets up an emulated device"
)


@emulated
@pytest.mark.parametrize(
    "name, value, message",
    [
        ("MEMORY", "20000", "OutOfMemoryError: a training step needs more memory"),
        ("DEVICES", "0", "MachineError: this machine has no device cuda:0"),
        ("CAPABILITY", "8.0", "MachineError: exported for sm_90"),
    ],
    ids=["memory", "none", "older"],
)
def test_devices_that_cannot(untrained, tmp_path, name, value, message):
    with pytest.raises(AssertionError, match=message):
        run_alone(
            untrained, batches(1), tmp_path / "results", **{f"GRAPHGRAD_EMULATOR_{name}": value}
        )


@emulated
def test_memory_that_is_kept_for_other_shapes_is_given_back(tmp_path):
    """The device has room for a step of either size, which takes 2 MiB, but not for both."""
    counts = (64, 65, 64)
    shapes = [{"input": (count, 4096)} for count in counts]
    model = gg.from_onnx(models.mlp((4096, 2, 10)))
    gg.export_step(model, tmp_path / "export", target=gpu(), shapes=shapes)
    given = [(np.zeros((count, 4096), "float32"), np.zeros(count, int)) for count in counts]
    room = {"GRAPHGRAD_EMULATOR_MEMORY": str(11 << 18)}
    losses, _ = run_alone(tmp_path / "export", given, tmp_path / "results", **room)
    assert len(losses) == 3
