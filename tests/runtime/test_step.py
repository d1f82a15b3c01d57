"""Exports run by TVM's runtime alone, which go on as the steps that they were made from."""

import copy
import pickle

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad.models.resnet import basic_block, resnet
from graphgrad.runtime import ExportedStepError, FolderError, InputError, MachineError, StateError
from tests.exports import run_alone
from tests.frontend.graphs import random
from tests.labels import label
from tests.runtime.data import ADAM, BATCH, images, rows, values
from tests.train.nets import held
from tests.train.test_dropout import network


def residual():
    """A step of the first block of `resnet_digits`."""
    options = {"width": 0.25, "stem": "cifar", "channels": 1, "size": 8, "batch": 4}
    return gg.train_step(gg.from_onnx(resnet("block", basic_block, (1,), **options)))


def dropping():
    return gg.train_step(network(), "mse", ADAM, seed=5)


def check_alone(step, export, batch, results):
    """Assert that, with neither compiler nor graphgrad, an export goes on as the step does."""
    batches = [batch(seed) for seed in range(1, 5)]
    losses, outputs = run_alone(export, batches, results)
    assert losses == [float(step(*each)) for each in batches]
    expected = step.evaluate(batches[0][0])
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert outputs[name].tobytes() == array.tobytes()
    reached, count = held(step), step.steps
    step.load(f"{results}.state")
    assert held(step) == reached and step.steps == count


def test_alone(original, made, tmp_path):
    check_alone(original, made / "whole", rows, tmp_path / "results")


@pytest.mark.parametrize("build, batch", [(residual, images), (dropping, values)], ids=label)
def test_alone_with_statistics_or_a_seed(tmp_path, build, batch):
    step = build()
    step(*batch(0))
    step.export(tmp_path / "export")
    check_alone(step, tmp_path / "export", batch, tmp_path / "results")


def test_it_starts_where_the_step_was(original, exported):
    assert held(exported) == held(original)
    assert (exported.steps, exported.skipped) == (2, 0)
    assert exported.learning_rate == original.learning_rate


def test_both_go_on_alike_from_each_others_files(original, exported, tmp_path):
    exported.learning_rate = original.learning_rate = 0.5
    assert exported(*rows(2)) == float(original(*rows(2)))
    exported.save(tmp_path / "exported", extra={"epoch": 3})
    original.save(tmp_path / "original", extra={"epoch": 4})
    assert (tmp_path / "exported").stat().st_size == (tmp_path / "original").stat().st_size
    assert original.load(tmp_path / "exported") == {"epoch": 3}
    assert exported.load(tmp_path / "original") == {"epoch": 4}
    assert exported.learning_rate == 0.5 and exported.steps == 3
    assert exported(*rows(3)) == float(original(*rows(3)))
    assert held(exported) == held(original)


def test_every_set_of_shapes(original, exported):
    for count in (6, 2):
        x = random(count, 4, seed=9)
        ((name, expected),) = original.evaluate(x).items()
        assert exported.evaluate({"input": x})[name].tobytes() == expected.tobytes()
    assert np.isfinite(exported(random(2, 4), np.arange(2)))


def test_a_step_that_is_not_finite_changes_nothing(exported):
    before = held(exported)
    loss = exported(np.full((6, 4), np.inf, "float32"), BATCH[1])
    assert not np.isfinite(loss)
    assert held(exported) == before and (exported.steps, exported.skipped) == (3, 1)


def test_loss_that_is_not_waited_for(original, exported):
    loss = exported.enqueue(*BATCH)
    assert isinstance(loss, tvm.runtime.Tensor) and not loss.shape
    assert float(loss.numpy()) == float(original(*BATCH))


def test_copies_are_handed_out(exported):
    before = held(exported)
    for group in (exported.params, exported.optimizer_state["first_moment"]):
        for array in group.values():
            array[...] = 7
    assert held(exported) == before


@pytest.mark.parametrize("rate", [-1, np.inf, np.nan, "0.1", True, 1e39])
def test_bad_learning_rates(loaded, rate):
    with pytest.raises(InputError, match="learning_rate"):
        loaded.learning_rate = rate
    assert loaded.learning_rate == ADAM.learning_rate


def test_all_errors_have_one_base():
    for error in (FolderError, MachineError, InputError, StateError):
        assert issubclass(error, ExportedStepError)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_says_what_to_do_instead(loaded, copied):
    with pytest.raises(ExportedStepError, match=r"save its state with save\(path\)"):
        copied(loaded)
