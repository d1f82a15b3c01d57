"""What a device cannot do is said, and nothing is lost by it."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad import models
from graphgrad.errors import OutOfMemoryError
from graphgrad.train.recent import Limit
from graphgrad.train.staging import Staging
from tests.cuda.device.running import gpu, is_emulated
from tests.train.nets import held

LEFT = (8 if is_emulated() else 256) << 20
"""Bytes of the device that tests may use; on a real one also its driver needs some."""

TOO_MANY = LEFT // 512
"""Examples whose activations, 512 floats each, take four times that."""


TWICE = 2 * LEFT >> 20
"""MiB that are too many."""


@pytest.fixture
def little_memory(monkeypatch):
    """Take all memory of the device but `LEFT`."""
    monkeypatch.setenv("GRAPHGRAD_EMULATOR_MEMORY", str(32 << 20))
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    taken = tvm.runtime.empty((tvm.cuda().available_global_memory - LEFT,), "uint8", tvm.cuda())
    yield
    del taken


@pytest.fixture(scope="module")
def compiled():
    return gg.train_step(gg.from_onnx(models.mlp((1, 512, 2))), target=gpu())


@pytest.fixture
def step(compiled, little_memory, tmp_path):
    """A step with little memory, put back to where it was afterwards."""
    compiled.save(tmp_path / "before")
    yield compiled
    compiled.load(tmp_path / "before")


def batch(count):
    return np.ones((count, 1), "float32"), np.zeros(count, int)


def test_a_step_that_runs_out_of_memory_loses_nothing(step, tmp_path):
    step.save(tmp_path / "start")
    step(*batch(2))
    before, steps = held(step), step.steps
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=r"a training step needs [\d.]+ MiB more"):
            step(*batch(TOO_MANY))
        assert held(step) == before and step.steps == steps and step.skipped == 0
    assert step(*batch(2)).applied
    disturbed = held(step)
    step.load(tmp_path / "start")
    for _ in range(2):
        step(*batch(2))
    assert held(step) == disturbed


def test_an_evaluation_that_runs_out_of_memory(step):
    with pytest.raises(OutOfMemoryError, match="out of memory: an evaluation needs"):
        step.evaluate(batch(TOO_MANY)[0])
    assert len(step.evaluate(batch(2)[0])["logits"]) == 2


def test_inputs_that_do_not_fit(step):
    with pytest.raises(
        OutOfMemoryError, match=rf"a copy of input 'input' needs {TWICE}\.0 MiB more"
    ):
        step(*batch(LEFT // 2))
    assert step(*batch(2)).applied


def test_a_model_that_does_not_fit(little_memory):
    model = gg.from_onnx(models.mlp((LEFT // 8192, 2048, 2)))
    free = tvm.cuda().available_global_memory
    with pytest.raises(OutOfMemoryError, match=rf"state of training \(.*{TWICE}\.\d MiB more"):
        gg.train_step(model, target=gpu())
    assert tvm.cuda().available_global_memory >= free or not is_emulated()


def test_memory_that_was_given_back_is_there_for_copies(little_memory):
    """The virtual machine keeps it, but for its own functions only."""
    count = LEFT // 128  # examples of which a step needs half of all
    model = gg.from_onnx(models.mlp((1, 4, 2)))
    gg.train_step(model, target=gpu(), cuda_graph=False)(*batch(count))
    kept = tvm.cuda().available_global_memory
    needed = LEFT * 5 // 8
    assert kept < needed or not is_emulated()
    Staging(tvm.cuda(), Limit(1)).copy("much", np.ones(needed, "uint8"))


def test_a_fault_on_the_device_is_told_wherever_it_is_met():
    """In a process of its own: a device that failed stays so for the process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda.device.fault"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all("cuda:0 failed at" in line for line in lines), done
