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
