"""Contractions that cuDNN computes; on the emulated device NumPy does, in its place."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import graphgrad as gg
from graphgrad.errors import DeviceError
from graphgrad.lower.cuda.costs import call_costs
from graphgrad.ops.define import call_op
from graphgrad.ops.fused_attention import ATTENTION
from graphgrad.runtime.cudnn.backend import CudnnError
from graphgrad.runtime.cudnn.engine import NAME
from graphgrad.runtime.cudnn.problem import MATMUL
from graphgrad.runtime.step import ExportedStep
from graphgrad.train.update import STEP
from tests.cuda.device.running import Program, assert_close, gpu
from tests.running import function
from tests.train.nets import deep

nn, permute = relax.op.nn, relax.op.permute_dims
HALF = "bfloat16"


CASES = {
    "conv_first": (
        lambda b, x, w: b.emit(nn.conv2d(x, w, strides=(2, 1), padding=(1, 2, 0, 1))),
        [(2, 3, 7, 8), (4, 3, 3, 2)],
    ),
    "conv_last": (
        lambda b, x, w: b.emit(
            nn.conv2d(x, w, dilation=2, padding=2, groups=2, data_layout="NHWC",
                      kernel_layout="OHWI")
        ),
        [(2, 7, 6, 4), (6, 3, 3, 2)],
    ),
    "conv3d": (
        lambda b, x, w: b.emit(nn.conv3d(x, w, strides=2)),
        [(2, 3, 5, 4, 5), (4, 3, 2, 1, 2)],
    ),
    "tall": (lambda b, x, w: b.emit(relax.op.matmul(x, b.emit(permute(w)))), [(2, 3, 5), (4, 5)]),
    "turned": (
        lambda b, x, y: b.emit(
            relax.op.matmul(b.emit(permute(x, [0, 2, 1, 3])), b.emit(permute(y, [0, 2, 3, 1])))
        ),
        [(2, 5, 3, 4), (2, 6, 3, 4)],
    ),
    "stacked": (lambda b, x, y: b.emit(relax.op.matmul(x, y)), [(2, 3, 4, 5), (2, 3, 5, 6)]),
    "spread": (lambda b, x, y: b.emit(relax.op.matmul(x, y)), [(1, 4, 5), (3, 5, 6)]),
}  # fmt: skip
"""Functions of two tensors, and their shapes."""


def test_contractions_and_their_gradients(library):
    functions = {}
    for name, (build, shapes) in CASES.items():
        mod = gg.vjp(function(build, *((shape, HALF) for shape in shapes), name=name), name)
        functions |= {f"{name}_vjp": mod[f"{name}_vjp"]}
    program = Program(tvm.IRModule(functions))
    rng = np.random.default_rng(0)
    for name in CASES:
        params = functions[f"{name}_vjp"].params
        arrays = [rng.standard_normal([int(n) for n in p.ty.shape]).astype(HALF) for p in params]
        program.check(f"{name}_vjp", *arrays)
    if library is not None:
        # Each twice: the product, and two gradients.
        assert len(library.computed) == 2 * 3 * len(CASES)
        assert sum(each.op == MATMUL for each in library.computed) == 2 * 3 * 4


def test_attention_and_its_gradient(library):
    def build(b, query, key, value):
        operands = [b.emit(permute(x, [0, 2, 1, 3])) for x in (query, key, value)]
        call = call_op(tvm.ir.Op.get(ATTENTION), operands, scale=0.3, causal="TopLeft")
        return b.emit(relax.TupleGetItem(b.emit(call), 0))

    types = [((2, 6, 4, 8), HALF), *[((2, 6, 2, 8), HALF)] * 2]
    mod = gg.vjp(function(build, *types, name="attend"), "attend")
    program = Program(mod)
    rng = np.random.default_rng(0)
    params = mod["attend_vjp"].params
    arrays = [rng.standard_normal([int(n) for n in p.ty.shape]).astype(HALF) for p in params]
    program.check("attend_vjp", *arrays)
    if library is not None:
        ops = [each.op for each in library.computed]
        assert ops == ["attention", "attention_gradient"] * 2  # in either order of threads


def test_parts_of_a_product_attend_where_they_are(library):
    heads, features = 3, 8

    def build(b, x, w):
        product = b.emit(relax.op.matmul(x, w))
        apart = b.emit(relax.op.reshape(product, (2, 7, 3, heads, features)))
        split = b.emit(relax.op.split(b.emit(permute(apart, [2, 0, 3, 1, 4])), 3, axis=0))
        parts = [b.emit(relax.TupleGetItem(split, place)) for place in range(3)]
        parts = [b.emit(relax.op.squeeze(part, [0])) for part in parts]
        call = call_op(tvm.ir.Op.get(ATTENTION), parts, scale=0.3, causal="TopLeft")
        return b.emit(relax.TupleGetItem(b.emit(call), 0))

    types = [((2, 7, 16), HALF), ((16, 3 * heads * features), HALF)]
    mod = gg.vjp(function(build, *types, name="attend"), "attend")
    rng = np.random.default_rng(0)
    params = mod["attend_vjp"].params
    arrays = [rng.standard_normal([int(n) for n in p.ty.shape]).astype(HALF) for p in params]
    Program(mod).check("attend_vjp", *arrays)
    if library is not None:
        problems = [each for each in library.computed if each.op != MATMUL]
        assert [each.joined for each in problems] == [False, True] * 2  # in either order of threads
        begins = [heads * features * place for place in range(3)]
        assert all([x.offset for x in each.inputs[:3]] == begins for each in problems)
        assert [x.offset for x in problems[1].outputs] == begins


def test_a_step_is_that_of_our_kernels(library):
    model = deep(blocks=2, channels=8)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 8, 8)).astype("float32"), np.arange(4)
    results = []
    for settings in ({"target": gpu()}, {"target": gpu(), "libraries": False}):
        step = gg.train_step(model, optimizer=gg.optim.SGD(0.1, momentum=0.9), **settings)
        losses = [float(step(x, y)) for _ in range(2)]
        results.append({**step.params, **step.state, "losses": np.array(losses, "float32")})
    for name, value in results[0].items():
        assert_close(value, results[1][name])
    if library is not None:
        ops = {each.op for each in library.computed}
        assert ops == {"conv_forward", "conv_data_gradient", "conv_weight_gradient", MATMUL}
        assert any(each.epilogue for each in library.computed)
        weights = [each.weights for each in library.computed if each.op != MATMUL]
        # In memory as tensor cores want them: channels innermost.
        assert {each.strides[1] for each in weights} == {1}


@tvm.ir.instrument.pass_instrument
class Lowered:
    """Keeps what lowering makes of a step."""

    def run_after_pass(self, mod, info):
        if str(info.name) == "graphgrad.lower":
            self.module = mod


def test_calls_of_an_export_are_those_that_were_predicted(library, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench" / "gpu"))
    import calls
    import predictions

    monkeypatch.setattr(calls, "COPIED", 1 << 16)
    x, y = np.ones((4, 3, 8, 8), "float32"), np.arange(4)
    lowered = Lowered()
    with tvm.transform.PassContext(opt_level=3, instruments=[lowered]):
        gg.export_step(deep(blocks=1), tmp_path, target=gpu(), shapes={"x": x.shape})
    costs = [asdict(cost) for cost in call_costs(lowered.module, STEP, 90)]
    assert any(cost["is_of_library"] for cost in costs)
    step = ExportedStep(tmp_path)
    times = calls.call_times(step, lambda: step(x, y), 2)
    rows = predictions.furthest(times, costs, len(costs))
    assert sum(row["calls"] for row in rows) == len(times) == len(costs) > 20
    assert all(row["measured_ms"] > 0 for row in rows)


def test_what_the_library_refuses_is_an_error_of_ours(library, monkeypatch):
    if library is None:
        pytest.skip("cuDNN itself refuses nothing here")

    def refuse(*_):
        raise CudnnError("cuDNN cannot compute conv_forward: CUDNN_STATUS_EXECUTION_FAILED")

    step = gg.train_step(deep(blocks=1), optimizer=gg.optim.SGD(0.1), target=gpu())
    tvm_ffi.register_global_func(NAME, refuse, override=True)
    with pytest.raises(DeviceError, match="CUDNN_STATUS_EXECUTION_FAILED"):
        float(step(np.zeros((4, 3, 8, 8), "float32"), np.arange(4)))
