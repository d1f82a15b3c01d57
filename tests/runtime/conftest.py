"""An export of a perceptron, and the step that it was made from."""

import shutil

import pytest

import graphgrad as gg
from graphgrad.runtime import ExportedStep
from tests.frontend.graphs import random
from tests.runtime.data import ADAM, rows
from tests.train.nets import perceptron


@pytest.fixture(scope="module")
def compiled():
    """A step after two steps, compiled for two sets of shapes."""
    step = gg.train_step(perceptron(), optimizer=ADAM)
    for seed in range(2):
        step(*rows(seed))
    step.evaluate(random(6, 4))
    step.evaluate(random(2, 4))
    return step


@pytest.fixture(scope="module")
def made(compiled, tmp_path_factory):
    """Folders: its export, one without weights, and the file of its state."""
    root = tmp_path_factory.mktemp("made")
    compiled.export(root / "whole")
    compiled.export(root / "bare", shapes={"input": (6, 4)}, weights=False)
    compiled.save(root / "saved")
    return root


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the export with weights."""
    return shutil.copytree(made / "whole", tmp_path / "export")


@pytest.fixture(scope="module")
def loaded(made):
    """An exported step that no test changes."""
    return ExportedStep(made / "whole")


@pytest.fixture
def exported(made):
    return ExportedStep(made / "whole")


@pytest.fixture
def original(compiled, made):
    """The step that was exported, where it was then."""
    compiled.load(made / "saved")
    return compiled
