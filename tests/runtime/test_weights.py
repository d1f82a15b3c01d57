"""Weights and states that an exported step is given, and what it makes of those of others."""

import numpy as np
import pytest
import tvm
from safetensors.numpy import save_file

import graphgrad as gg
from graphgrad.runtime import ExportedStep, FolderError, InputError, StateError
from tests.frontend.graphs import random
from tests.runtime.data import ADAM, BATCH, rows
from tests.train.nets import held, perceptron

MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)


def test_weights_from_elsewhere(made, tmp_path):
    model = perceptron()
    arrays = {name: random(*array.shape, seed=4) for name, array in model.params.items()}
    save_file({name: arrays[name] for name in reversed(arrays)}, tmp_path / "weights")
    expected = gg.train_step(gg.Model(model.mod, arrays), optimizer=ADAM)
    losses = [float(expected(*rows(seed))) for seed in range(2)]
    for weights in (arrays, tmp_path / "weights"):
        step = ExportedStep(made / "bare", weights=weights)
        assert step.steps == 0
        assert [step(*rows(seed)) for seed in range(2)] == losses
        assert held(step) == held(expected)


def test_weights_are_copied(made):
    arrays = {name: tvm.runtime.tensor(a) for name, a in perceptron().params.items()}
    before = {name: tensor.numpy().tobytes() for name, tensor in arrays.items()}
    ExportedStep(made / "bare", weights=arrays)(*BATCH)
    assert {name: tensor.numpy().tobytes() for name, tensor in arrays.items()} == before


def test_a_saved_state_in_place_of_weights(made, original):
    step = ExportedStep(made / "bare", weights=made / "saved")
    assert held(step) == held(original) and step.steps == 2


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("fc1.bias"), r"missing \['fc1.bias'\]"),
        (lambda a: a.update(more=np.zeros(1)), r"unknown \['more'\]"),
        (lambda a: a.update({"more": 0, 1: 0}), r"unknown \[1, 'more'\]"),
        (lambda a: a.update({"fc1.bias": np.zeros(2, "float32")}), "'fc1.bias': expected shape"),
        (lambda a: a.update({"fc1.bias": np.zeros(5)}), "'fc1.bias': expected dtype float32"),
    ],
    ids=["missing", "unknown", "mixed", "shape", "dtype"],
)
def test_weights_that_do_not_fit(made, change, message):
    arrays = dict(perceptron().params)
    change(arrays)
    with pytest.raises(InputError, match=message):
        ExportedStep(made / "bare", weights=arrays)


def test_weights_without_names(made):
    with pytest.raises(InputError, match="weights is a list; give arrays by name or a path"):
        ExportedStep(made / "bare", weights=[BATCH[0]])


def test_no_weights(made):
    with pytest.raises(FolderError, match="exported without weights"):
        ExportedStep(made / "bare")


def test_states_of_others(loaded, made, tmp_path):
    gg.train_step(perceptron(), optimizer=MOMENTUM).save(tmp_path / "momentum")
    gg.train_step(perceptron(), optimizer=gg.optim.Adam(0.01, betas=(0.5, 0.9))).save(
        tmp_path / "settings"
    )
    gg.train_step(perceptron((4, 3)), optimizer=ADAM).save(tmp_path / "model")
    (tmp_path / "damaged").write_bytes((made / "saved").read_bytes()[:-1])
    before = held(loaded)
    for name, message in [
        ("momentum", "was saved by SGD"),
        ("settings", "was saved by Adam"),
        ("model", "another model or optimizer"),
        ("damaged", "damaged"),
        ("missing", "no file"),
    ]:
        with pytest.raises(StateError, match=message):
            loaded.load(tmp_path / name)
    with pytest.raises(StateError, match="cannot write"):
        loaded.save(tmp_path / "missing" / "state")
    assert held(loaded) == before


@pytest.mark.parametrize(
    "extra, error, message",
    [
        ([1, 2], InputError, "extra is a list; give a dict"),
        ("hello", InputError, "extra is a str; give a dict"),
        ({"at": {1}}, StateError, "JSON cannot hold"),
    ],
    ids=["list", "text", "set"],
)
def test_facts_that_cannot_be_saved(loaded, tmp_path, extra, error, message):
    with pytest.raises(error, match=message):
        loaded.save(tmp_path / "state", extra=extra)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [5, None, b"state"], ids=repr)
def test_states_at_what_is_no_path(loaded, path):
    with pytest.raises(StateError, match="is no path of a file"):
        loaded.save(path)
    with pytest.raises(StateError, match="is no path of a file"):
        loaded.load(path)
