"""What the function that compiled programs call checks, before it hands anything to cuDNN."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tvm

from graphgrad.runtime.cudnn import backend, engine, plans
from graphgrad.runtime.cudnn.backend import CudnnError
from graphgrad.runtime.cudnn.plans import Plan
from graphgrad.runtime.cudnn.problem import MATMUL, Problem, TensorForm

FORMS = [TensorForm((1, 2, 3), (6, 3, 1), "float32"), TensorForm((1, 3, 4), (12, 1, 3), "float32")]
PRODUCT = Problem(MATMUL, tuple(FORMS), (TensorForm((1, 2, 4), (8, 4, 1), "float32"),))
HERE = 91000


def plan(workspace=64, version=HERE, architecture=90):
    return Plan(PRODUCT, workspace, 4, (), version, architecture, "{}")


def tensors(*sizes, workspace):
    arrays = [np.zeros(size, "float32") for size in sizes]
    return [tvm.runtime.tensor(array) for array in (*arrays, np.zeros(workspace, "uint8"))]


@pytest.fixture
def device(monkeypatch):
    """A GPU of capability 9.0 and a version of cuDNN that are not there."""
    monkeypatch.setattr(engine, "_device", lambda index: engine._Device(None, None, 90))
    monkeypatch.setattr(engine, "set_device", lambda index: None)
    monkeypatch.setattr(backend, "version", lambda: HERE)

    def load(made, target):
        if (made.cudnn, made.architecture) != (HERE, 90):
            raise CudnnError("CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH")
        return made

    monkeypatch.setattr(plans, "load", load)
    engine._loaded.cache_clear()
    yield
    engine._loaded.cache_clear()


def call(made, a, b, output, workspace):
    engine.compute(a, b, made.to_json(), output, workspace)


def test_tensors_of_other_sizes(device):
    with pytest.raises(CudnnError, match=r"tensors of \[6, 12, 9\] elements"):
        call(plan(), *tensors(6, 12, 9, workspace=64))


def test_tensors_of_another_dtype(device):
    a, b, _, workspace = tensors(6, 12, 8, workspace=64)
    with pytest.raises(CudnnError, match="'float64'"):
        call(plan(), a, b, tvm.runtime.tensor(np.zeros(8)), workspace)


def test_a_tensor_that_begins_anywhere(device):
    whole, b, output, workspace = tensors(7, 12, 8, workspace=64)
    a = whole._create_view((6,), "float32", relative_byte_offset=4)
    with pytest.raises(CudnnError, match="begins at no multiple of 16"):
        call(plan(), a, b, output, workspace)


@pytest.mark.parametrize(
    "made",
    [plan(version=90900), plan(architecture=80), plan(workspace=999)],
    ids=["old", "other", "large"],
)
def test_a_plan_that_is_not_taken_here_is_made_anew_in_the_workspace(device, monkeypatch, made):
    asked = []

    def plan_again(problem, target, architecture, limit):
        asked.append((problem, architecture, limit))
        return plan(workspace=16)

    monkeypatch.setattr(plans, "make_plan", plan_again)
    text = made.to_json()
    for _ in range(2):
        assert engine._loaded(text, 0, 64).plan == plan(workspace=16)
    assert asked == [(PRODUCT, 90, 64)]


def test_a_plan_of_this_version_is_taken_as_it_is(device):
    assert engine._loaded(plan().to_json(), 0, 64).plan == plan()


def test_constants_are_in_memory_that_stays(device):
    made = replace(plan(), constants=((4, 0.5), (9, -math.inf)))
    constants = engine._loaded(made.to_json(), 0, 64).constants
    assert {number: each.value for number, each in constants.items()} == {4: 0.5, 9: -math.inf}


def test_parts_of_a_tensor_are_addressed_in_it(device):
    first, second = (TensorForm((1, 2, 4), (16, 8, 1), "float32", at, 16) for at in (0, 4))
    parted = replace(PRODUCT, outputs=(first, second), joined=True)
    a, b, whole, workspace = tensors(6, 12, 16, workspace=64)
    given = engine.given_tensors(parted, [a, b, whole])
    assert given == [a, b, whole, whole]
    addresses = [engine._address(*pair) for pair in zip(given[2:], parted.outputs, strict=True)]
    assert addresses == [whole.data_ptr(), whole.data_ptr() + 16]
    made = replace(plan(), problem=parted)
    with pytest.raises(CudnnError, match=r"tensors of \[6, 12, 15, 15\] elements"):
        call(made, *tensors(6, 12, 15, workspace=64))
    uneven = replace(parted, outputs=(first, replace(second, offset=1)))
    with pytest.raises(CudnnError, match="begins at no multiple of 16"):
        call(replace(made, problem=uneven), a, b, whole, workspace)


def test_a_wide_stride_counts_to_the_last_element():
    assert TensorForm((2, 3), (10, 1), "float32").reach == 13
