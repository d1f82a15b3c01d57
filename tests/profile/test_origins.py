"""Kernels know the nodes of the file that they compute, after fusion and in-place updates."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad import models
from graphgrad.ir.provenance import span_of
from graphgrad.ir.tensor import Emitter
from graphgrad.lower.pipeline import lower
from graphgrad.profile.origins import OriginRecorder


def recorded(mod, name="main"):
    recorder = OriginRecorder(name)
    with tvm.transform.PassContext(opt_level=2, instruments=[recorder]):
        lowered = lower(mod, gg.target("llvm"))
    return recorder, lowered


def network(spans):
    """Return two layers of equal shapes, whose bindings have spans."""
    params = [relax.Var(name, relax.TensorType([4, 4], "float32")) for name in "xvw"]
    builder = relax.BlockBuilder()
    emitter = Emitter(builder)
    with builder.function("main", params):
        with builder.dataflow():
            y, *weights = params
            for span, weight in zip(spans, weights, strict=True):
                with emitter.at(span, "layer"):
                    product = emitter.emit(relax.op.matmul(y, weight)).expr
                    y = emitter.emit(relax.op.nn.relu(product)).expr
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


def test_shared_kernels_are_told_apart_by_their_calls():
    recorder, _ = recorded(network([span_of("first", "Gemm"), span_of("second", "Gemm", "user")]))
    first, second = recorder.calls
    assert first.kernel == second.kernel
    assert {o.provenance.node for o in first.origins} == {"first"}
    assert {(o.provenance.node, o.provenance.origin) for o in second.origins} == {
        ("second", "user")
    }
    assert [o.op for o in first.origins] == ["relax.matmul", "relax.nn.relu"]


def test_calls_without_a_node_keep_their_op():
    recorder, _ = recorded(network([None, None]))
    assert all(o.provenance.node is None for call in recorder.calls for o in call.origins)
    assert recorder.calls[0].origins[0].op == "relax.matmul"


def test_other_functions_are_overlooked():
    recorder, _ = recorded(network([None, None]), "another")
    assert recorder.module is None and recorder.calls == []


def test_a_kernel_that_nobody_knows_is_unknown():
    mod = network([span_of("first", "Gemm"), span_of("second", "Gemm")])
    stranger = relax.transform.LegalizeOps()(network([None, None]))
    recorder = OriginRecorder("main")

    @tvm.transform.module_pass(opt_level=0, name="a pass that computes something else")
    def other(_: tvm.IRModule, __: tvm.transform.PassContext) -> tvm.IRModule:
        return stranger

    passes = [relax.transform.LegalizeOps(), other, relax.transform.ToNonDataflow()]
    with tvm.transform.PassContext(opt_level=2, instruments=[recorder]):
        tvm.transform.Sequential(passes)(mod)
    assert [call.origins for call in recorder.calls] == [()] * 4


@pytest.fixture(scope="module")
def training_step():
    """The recorder of a training step, and what it was lowered to."""
    seen = []

    class Watch:
        def lowering(self, name, budget):
            recorder = OriginRecorder(name)
            seen.append(recorder)
            return tvm.transform.PassContext(opt_level=2, instruments=[recorder])

        def loaded(self, machine, device):
            pass

    step = gg.train_step(gg.from_onnx(models.lenet(size=12, batch=2)))
    with step.watched(Watch()):
        step(np.zeros((2, 1, 12, 12), np.float32), np.zeros(2, int))
    (recorder,) = seen
    return recorder


def test_every_kernel_of_a_step_is_known(training_step):
    assert all(call.origins for call in training_step.calls)
    found = [o.provenance for call in training_step.calls for o in call.origins]
    nodes = {one.node for one in found if one.node}
    # A reshape is a view of memory, which no kernel computes.
    assert nodes == {node.name for node in models.lenet(size=12).graph.node} - {"flatten"}
    assert {one.op_type for one in found if one.node is None} == {"loss", "update"}
    assert {one.origin for one in found} == {None, "hand"}


def test_each_node_has_its_gradient(training_step):
    backward = {
        o.provenance.node
        for call in training_step.calls
        for o in call.origins
        if o.provenance.origin is not None
    }
    weighted = {n.name for n in models.lenet(size=12).graph.node if n.op_type in ("Conv", "Gemm")}
    assert weighted <= backward
