"""``call_tir_with_grad`` has the gradient that it names."""

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax.training.utils import register_te_gradient

import graphgrad as gg
from tests.running import F64, function, run

X = np.linspace(0.5, 2.0, 6).reshape(2, 3)
ONES = np.ones((2, 3))


def square(x, y):
    return te.compute(x.shape, lambda *i: x(*i) * y(*i) * 2.0, name="product")


def with_te_gradient(name, **settings):
    def build(builder, x, y):
        call = builder.call_te_with_grad(
            square, x, y, te_grad_name=name, te_grad_kwargs=settings or None
        )
        return builder.emit(call)

    return function(build, ((2, 3), F64), ((2, 3), F64))


def test_the_te_gradient_that_a_call_names():
    def gradient(ct, x, y, factor):
        def scaled(other):
            return te.compute(x.shape, lambda *i: ct(*i) * other(*i) * factor)

        return [scaled(y), scaled(x)]

    register_te_gradient("tests.te.product", gradient)
    mod = with_te_gradient("tests.te.product", factor=7.0)
    assert [row.provenance for row in gg.coverage(mod).rows] == ["user"]
    differentiated = gg.vjp(mod)
    _, x_bar, y_bar = run(differentiated, "main_vjp", X, X + 1, ONES)
    np.testing.assert_allclose(x_bar, 7 * (X + 1))
    np.testing.assert_allclose(y_bar, 7 * X)


def test_a_te_gradient_of_wrong_arity():
    def gradient(ct, x, y):
        return te.compute(x.shape, lambda *i: ct(*i) * 2.0)

    register_te_gradient("tests.te.half", gradient)
    with pytest.raises(gg.RuleError, match=r"te gradient 'tests\.te\.half'.*1 cotangent"):
        gg.vjp(with_te_gradient("tests.te.half"))


def test_a_te_gradient_that_is_not_registered():
    with pytest.raises(gg.MissingGradientError, match=r"te_grad_name 'tests\.none' is not reg"):
        gg.vjp(with_te_gradient("tests.none"))


def test_several_outputs_of_which_one_is_read():
    def pair(x):
        double = te.compute(x.shape, lambda *i: x(*i) * 2.0, name="double")
        return [double, te.compute(x.shape, lambda *i: x(*i) * 3.0, name="triple")]

    def gradient(ct, x):
        return te.compute(x.shape, lambda *i: ct[0](*i) * 20.0 + ct[1](*i) * 30.0)

    register_te_gradient("tests.te.pair", gradient)

    def build(builder, x):
        call = builder.call_te_with_grad(pair, x, te_grad_name="tests.te.pair")
        return builder.emit(relax.TupleGetItem(builder.emit(call), 1))

    _, x_bar = run(gg.vjp(function(build, ((2, 3), F64))), "main_vjp", X, ONES)
    np.testing.assert_allclose(x_bar, 30 * ONES)


def test_off_the_path_it_need_not_be_registered():
    def build(builder, x, y):
        call = builder.call_te_with_grad(square, y, y, te_grad_name="tests.none")
        return builder.emit(relax.op.multiply(x, builder.emit(call)))

    mod = gg.vjp(function(build, ((2, 3), F64), ((2, 3), F64)), wrt="x0")
    np.testing.assert_allclose(run(mod, "main_vjp", X, X, ONES)[1], 2 * X * X)


def test_the_drop_in_writes_call_tir_as_tvms_pass_does():
    def gradient(ct, x, y):
        return [tvm.topi.multiply(ct, other) for other in (y, x)]

    register_te_gradient("tests.te.plain", gradient)
    mod = with_te_gradient("tests.te.plain")
    builder = relax.BlockBuilder(mod)
    x, y = (relax.Var(name, relax.TensorType([2, 3], F64)) for name in "xy")
    with builder.function("loss", [x, y]):
        product = builder.emit(relax.Call(mod.get_global_var("main"), [x, y]))
        builder.emit_func_output(builder.emit(relax.op.sum(product)))
    adjoint = gg.transform.Gradient("loss")(builder.get())
    assert relax.analysis.check_well_formed(adjoint)
    assert "with_grad" not in adjoint["loss_adjoint"].script()
    assert "with_grad" in adjoint["main"].script()
    _, x_bar, _ = run(adjoint, "loss_adjoint", X, X + 1)
    np.testing.assert_allclose(x_bar, X + 1)
