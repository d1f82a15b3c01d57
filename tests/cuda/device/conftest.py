"""Tests here run on a CUDA device and are skipped where there is none.

`tests/cuda/test_on_emulator.py` runs them on an emulated one.
"""

import pytest

from graphgrad.lower.cuda.library import attention, select
from graphgrad.lower.device import cuda_absence
from graphgrad.runtime import cuda_graph
from graphgrad.runtime.cudnn.backend import library_path
from graphgrad.runtime.cudnn.plans import Plan
from tests.cuda.device.running import is_emulated
from tests.emulator.library import Library
from tests.peers import required

WORKSPACE = 96


@pytest.fixture(autouse=True, scope="session")
def cuda_device():
    absence = cuda_absence()
    if absence:
        pytest.skip(f"no CUDA device: {absence}")


@pytest.fixture
def launches(monkeypatch):
    """The launches of graphs, in order."""
    launched, launch = [], cuda_graph._Graph.launch

    def counting(self, arguments, results):
        launched.append(self)
        return launch(self, arguments, results)

    monkeypatch.setattr(cuda_graph._Graph, "launch", counting)
    return launched


@pytest.fixture
def library(monkeypatch):
    """The library, which is to compute whatever it can; where it is emulated, by plans of ours."""
    monkeypatch.delenv(select.SWITCH)
    monkeypatch.setattr(select, "library_pays", lambda plan: True)
    if not is_emulated():
        required("cuDNN", library_path() is not None)
        yield None
        return

    def plan_all(problems, properties):
        return {each: Plan(each, WORKSPACE, 0, (), 0, 90, "") for each in problems}

    for module in (attention, select):
        monkeypatch.setattr(module, "plan_all", plan_all)
    monkeypatch.setattr(select, "is_installed", lambda: True)
    with Library() as counting:
        yield counting
