"""Profiles of whole steps: what is timed, how it is named, and what a step still does."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.profile.profile import Profile


def batch():
    generator = np.random.default_rng(0)
    return generator.standard_normal((4, 5), np.float32), generator.integers(0, 3, 4)


@pytest.fixture(scope="module")
def profiled():
    step = gg.train_step(gg.from_onnx(models.mlp((5, 7, 3))))
    before = step.params
    found = gg.profile(step, *batch(), steps=3)
    return step, before, found


def test_the_steps_are_steps(profiled):
    step, before, _ = profiled
    assert step.steps == 7 and step.skipped == 0
    other = gg.train_step(gg.from_onnx(models.mlp((5, 7, 3))))
    for _ in range(7):
        other(*batch())
    for name, array in other.params.items():
        np.testing.assert_array_equal(step.params[name], array)
        assert not np.array_equal(before[name], array)


def test_all_time_is_told(profiled):
    _, _, found = profiled
    assert len(found.step_seconds) == 3 and min(found.step_seconds) > 0
    assert found.compile_seconds > 0 and found.machine_seconds > 0
    assert all(kernel.seconds > 0 for kernel in found.kernels)
    assert sum(one.seconds for one in found.classes) == pytest.approx(found.kernel_seconds)
    assert sum(one.calls for one in found.classes) == len(found.kernels)
    assert sum(found.phases.values()) == pytest.approx(found.kernel_seconds)
    assert found.classes == sorted(found.classes, key=lambda one: -one.seconds)


def test_kernels_have_nodes_phases_and_gradients(profiled):
    _, _, found = profiled
    assert set(found.phases) <= {"forward", "backward", "update", "backward + update"}
    nodes = {node for kernel in found.kernels for node in kernel.nodes}
    assert {node.name for node in models.mlp((5, 7, 3)).graph.node} <= nodes
    for kernel in found.kernels:
        assert kernel.gradients == (("hand",) if "backward" in kernel.phase else ())
    forward = [k.op_class for k in found.kernels if k.phase == "forward"]
    assert any("Gemm" in one for one in forward) and "loss" in " ".join(forward)
    assert {k.op_class for k in found.kernels if k.phase == "update"} == {"update"}


def test_nothing_of_a_file_is_unknown(profiled):
    _, _, found = profiled
    assert "unknown" not in {kernel.phase for kernel in found.kernels}


def test_memory_belongs_to_the_kernels(profiled):
    _, _, found = profiled
    assert found.memory is not None
    assert [k.call for k in found.kernels] == list(range(len(found.memory.tensors)))
    held = sum(a.nbytes for a in profiled[0].params.values())
    assert found.memory.arguments >= 2 * held  # parameters and momenta
    assert found.memory.peak_bytes >= found.memory.arguments


def test_bytes_are_those_of_the_tensors_of_a_call(profiled):
    _, _, found = profiled
    (first,) = (k for k in found.kernels if "Gemm" in k.op_class and k.call == 0)
    batch, width, hidden = 4, 5, 7
    numbers = batch * width + width * hidden + hidden + batch * hidden
    assert first.bytes >= 4 * numbers
    assert sum(one.bytes for one in found.classes) == sum(k.bytes for k in found.kernels)


def test_kernels_have_the_floats_that_a_precision_gives_them():
    step = gg.train_step(gg.from_onnx(models.mlp((5, 7, 3))), precision="bfloat16")
    found = gg.profile(step, *batch(), steps=1)
    for phase in ("forward", "backward"):
        for node in ("fc1", "fc2"):
            products = [k for k in found.kernels if k.phase == phase and node in k.nodes]
            assert any("bfloat16" in kernel.dtypes for kernel in products)
    losses = [kernel for kernel in found.kernels if kernel.op_class == "loss"]
    assert {dtype for kernel in losses for dtype in kernel.dtypes} == {"float32"}


def test_json_holds_everything(profiled):
    _, _, found = profiled
    facts = json.loads(found.to_json())
    assert len(facts["kernels"]) == len(found.kernels)
    assert facts["peak_bytes"] == found.memory.peak_bytes
    assert facts["memory"]["peak"] == found.memory.peak
    assert sum(one["seconds"] for one in facts["classes"]) == pytest.approx(facts["kernel_seconds"])


def test_the_step_itself_is_not_watched_afterwards(profiled):
    step, _, _ = profiled
    count = step.steps
    assert np.isfinite(float(step(*batch())))
    assert step.steps == count + 1


def test_derived_gradients_are_called_so():
    step = gg.train_step(gg.from_onnx(models.mlp((5, 3))), rules="derived")
    found = gg.profile(step, *batch(), steps=1)
    told = {origin for kernel in found.kernels for origin in kernel.gradients}
    assert "derived" in told and "hand" not in told
    assert "forward" in {phase for kernel in found.kernels for phase in kernel.phase.split(" + ")}


def sorting_model():
    """Return a model that sorts, which TVM leaves to a packed function."""
    x = relax.Var("x", relax.TensorType([4, 5], "float32"))
    w = relax.Var("w", relax.TensorType([4, 5], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(x, w))
            result = builder.emit_output(builder.emit(relax.op.sort(y)))
        builder.emit_func_output(result)
    return gg.Model(builder.get(), {"w": np.ones((4, 5), np.float32)})


def test_a_model_that_is_no_file_is_named_by_its_ops():
    found = gg.profile(gg.train_step(sorting_model(), loss="mse"), batch()[0], batch()[0], steps=1)
    assert all(kernel.nodes == () for kernel in found.kernels)
    classes = {part for k in found.kernels for part in k.op_class.split(" + ")}
    assert "add" in classes and "unknown" not in {k.phase for k in found.kernels if k.call}


@pytest.mark.parametrize(
    "change, error",
    [
        ({"step": lambda x, y: 0.0}, "made by graphgrad.train_step, given a function"),
        ({"steps": 0}, "steps=0 must be a whole number, at least 1"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"steps": "3"}, "steps='3' must be a whole number"),
        ({"steps": True}, "steps=True must be a whole number"),
    ],
)
def test_bad_arguments(profiled, change, error):
    arguments = {"step": profiled[0], "steps": 1} | change
    count = profiled[0].steps
    with pytest.raises(gg.ArgumentError, match=error):
        gg.profile(arguments["step"], *batch(), steps=arguments["steps"])
    assert profiled[0].steps == count


def test_windows_are_refused():
    step = gg.train_step(gg.from_onnx(models.mlp((5, 3))), accumulate=2)
    with pytest.raises(gg.ArgumentError, match="2 micro-batches"):
        gg.profile(step, *batch())


def test_wrong_input_leaves_the_step_as_it_was(profiled):
    step, _, _ = profiled
    count = step.steps
    with pytest.raises(gg.InputError):
        gg.profile(step, np.zeros((4, 6), np.float32), batch()[1])
    assert step.steps == count
    step(*batch())
    assert isinstance(gg.profile(step, *batch(), steps=1), Profile)
    assert not tvm.transform.PassContext.current().instruments
