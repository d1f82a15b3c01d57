"""Results that nothing reads: kernels that know their expressions return the others alone."""

import numpy as np
import tvm
from tvm import relax, te, tirx

import graphgrad as gg
from graphgrad.ir.kernel_calls import is_kernel_call
from graphgrad.lower.fusion import drop_unread_results
from graphgrad.ops.legalize import LEGALIZATIONS
from tests.running import run

op = relax.op


def _results(mod, name):
    """The number of results of each kernel call of a function."""
    bindings = [b for block in mod[name].body.blocks for b in block.bindings]
    calls = [b.value for b in bindings if is_kernel_call(b.value)]
    return [len(c.ty.fields) if isinstance(c.ty, relax.TupleType) else 1 for c in calls]


def _recurrence(start):
    """The states of h = softmax(x + h w), whose first is a parameter (`start`) or zero."""
    builder = relax.BlockBuilder()
    shapes = {"x": (40, 16, 64), "w": (64, 64), "h": (16, 64)}
    x, w, h = (relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items())
    params = [x, w, h] if start else [x, w]
    with builder.function("main", params):
        with builder.dataflow():
            first = h if start else builder.emit(op.zeros((16, 64), "float32"))

            def step(h, x):
                h = builder.emit(op.nn.softmax(op.add(x, op.matmul(h, w))))
                return h, h

            y = builder.emit_output(gg.scan(step, first, x)[1])
        builder.emit_func_output(y)
    return gg.vjp(builder.get())


def test_states_of_a_loop_backwards_that_no_gradient_reads_are_not_returned():
    counts = {}
    for start in (True, False):
        mod = relax.transform.LegalizeOps(LEGALIZATIONS)(_recurrence(start))
        changed = drop_unread_results(mod)
        counts[start] = sum(_results(mod, "main_vjp")) - sum(_results(changed, "main_vjp"))
    assert counts[True] == 0 and counts[False] > 0


def test_gradients_are_those_of_a_loop_that_returns_all():
    random = np.random.default_rng(0)
    x, w = random.standard_normal((40, 16, 64), "f4"), random.standard_normal((64, 64), "f4") / 9
    ct, h = random.standard_normal((40, 16, 64), "f4"), np.zeros((16, 64), "f4")
    _, dx, dw, _ = run(_recurrence(True), "main_vjp", x, w, h, ct)
    _, dx_alone, dw_alone = run(_recurrence(False), "main_vjp", x, w, ct)
    np.testing.assert_allclose(dx_alone, dx, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dw_alone, dw, rtol=1e-5, atol=1e-4)


def test_what_is_read_or_written_by_hand_stays():
    """Of two results one is read: by expressions the kernel is known, by its loops it is not."""

    def both(x):
        double = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, "double")
        return [double, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "more")]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((256, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            pair = builder.emit(gg.call_te(both, x))
            second = builder.emit_output(relax.TupleGetItem(pair, 1))
        builder.emit_func_output(second)
    known = builder.get()
    functions = {v: _without_expressions(f) for v, f in known.functions.items()}
    for mod, expected in ((known, [1]), (tvm.IRModule(functions), [2])):
        assert _results(drop_unread_results(mod), "main") == expected
        value = np.random.default_rng(0).standard_normal((256, 256), "f4")
        (found,) = run(mod, "main", value)
        np.testing.assert_array_equal(found, value + 1)


def _without_expressions(func):
    is_kernel = isinstance(func, tirx.PrimFunc)
    return func.without_attr("graphgrad.expressions") if is_kernel else func
