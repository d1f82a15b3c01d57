"""Ways in which a derivative could get lost: each gives the full gradient, or an error."""

import numpy as np
import pytest
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import graphgrad as gg
from tests.running import F64, function, run

X = np.array([0.5, 1.5, 2.5])


@I.ir_module
class AliasedClosure:
    @R.function
    def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        @R.function
        def scaled(a: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            b = R.multiply(a, x)
            return b

        again = scaled
        y = again(R.const([1.0, 2.0, 3.0], "float64"))
        return y


@I.ir_module
class ReturnedClosure:
    @R.function(private=True)
    def maker(
        x: R.Tensor((3,), "float64"),
    ) -> R.Callable((R.Tensor((3,), "float64"),), R.Tensor((3,), "float64")):
        @R.function
        def inner(a: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            b = R.multiply(a, x)
            return b

        return inner

    @R.function
    def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        cls = ReturnedClosure
        scaled = cls.maker(x)
        y = scaled(R.const([1.0, 2.0, 3.0], "float64"))
        return y


@pytest.mark.parametrize("name", ["AliasedClosure", "ReturnedClosure"])
def test_closure_over_the_differentiated_value(name):
    mod = gg.vjp(globals()[name])
    del mod["main"]  # TVM's own lowering does not survive an alias of a closure
    np.testing.assert_allclose(run(mod, "main_vjp", X, np.ones(3))[1], [1, 2, 3])


def test_lifted_closures_are_reported():
    lifted = relax.transform.LambdaLift()(ReturnedClosure)
    with pytest.raises(gg.MissingGradientError, match="make_closure") as caught:
        gg.vjp(lifted)
    assert [op for op, _ in caught.value.missing] == [
        "relax.invoke_pure_closure",
        "relax.make_closure",
    ]


def test_opaque_object_on_the_way_is_reported():
    @I.ir_module
    class Opaque:
        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            held = R.call_pure_packed("hold", x, ty_args=R.Object)
            y = R.match_cast(held, R.Tensor((3,), "float64"))
            return y

    with pytest.raises(gg.MissingGradientError, match="call_pure_packed"):
        gg.vjp(Opaque)


def test_callee_that_does_not_state_its_dtype():
    @I.ir_module
    class Loose:
        @R.function(private=True)
        def square(x: R.Tensor((3,), "float64")) -> R.Tensor:
            y = R.multiply(x, x)
            return y

        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            cls = Loose
            y: R.Tensor = cls.square(x)
            z = R.match_cast(y, R.Tensor((3,), "float64"))
            return z

    np.testing.assert_allclose(run(gg.vjp(Loose), "main_vjp", X, np.ones(3))[1], 2 * X)


def test_cotangent_of_a_fill_value():
    mod = function(lambda b, x, s: b.emit(relax.op.full_like(x, s)), ((3,), F64), ((), F64))
    gradients = run(gg.vjp(mod), "main_vjp", X, np.float64(2), np.ones(3))[1:]
    np.testing.assert_array_equal(gradients[0], np.zeros(3))
    assert gradients[1] == 3


def test_wrt_behind_a_nondifferentiable_op():
    def build(builder, x):
        return builder.emit(relax.op.multiply(builder.emit(relax.op.floor(x)), x))

    mod = gg.vjp(function(build, ((3,), F64)), wrt=["x0", "lv"])
    _, of_x, of_floor = run(mod, "main_vjp", X, np.ones(3))
    np.testing.assert_array_equal(of_x, np.floor(X))
    np.testing.assert_array_equal(of_floor, X)


@I.ir_module
class SameNames:
    @R.function(private=True)
    def helper(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        y = R.multiply(x, x)
        return y

    @R.function
    def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        cls = SameNames
        z = cls.helper(x)
        y = R.exp(z)
        return y

    @R.function
    def shadowed(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
        y = R.exp(x)
        y = R.exp(y)
        return y


def test_a_name_is_the_functions_own_before_an_inlined_one():
    gradient = run(gg.vjp(SameNames, wrt="y"), "main_vjp", X, np.ones(3))[1]
    np.testing.assert_array_equal(gradient, np.ones(3))


def test_ambiguous_name_is_refused():
    with pytest.raises(gg.ArgumentError, match="2 values of 'shadowed' have the name 'y'"):
        gg.vjp(SameNames, "shadowed", wrt="y")


def test_local_function_may_have_the_name_of_its_caller():
    @I.ir_module
    class Names:
        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            @R.function
            def main(a: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
                b = R.multiply(a, a)
                return b

            y = main(x)
            return y

    np.testing.assert_allclose(run(gg.vjp(Names), "main_vjp", X, np.ones(3))[1], 2 * X)


@pytest.mark.parametrize(
    "masked",
    [
        relax.op.nn.relu,
        lambda x: relax.op.maximum(x, relax.const(0.0, F64)),
        lambda x: relax.op.clip(x, 0.0, 9.0),
        lambda x: relax.op.minimum(relax.op.nn.relu(x), relax.const(9.0, F64)),
    ],
    ids=["relu", "maximum", "clip", "minimum"],
)
def test_masks_stop_an_infinite_cotangent(masked):
    mod = function(lambda b, x: b.emit(relax.op.sqrt(b.emit(masked(x)))), ((2,), F64))
    gradient = run(gg.vjp(mod), "main_vjp", np.array([-1.0, 4.0]), np.ones(2))[1]
    np.testing.assert_array_equal(gradient, [0, 0.25])


def test_nll_loss_of_ignored_targets_only_has_gradient_zero():
    def build(builder, p, t):
        return builder.emit(relax.op.nn.nll_loss(p, t, ignore_index=-5))

    mod = gg.vjp(function(build, ((2, 3), F64), ((2,), "int64")))
    loss, gradient = run(mod, "main_vjp", -np.ones((2, 3)), np.array([-5, -5]), np.float64(1))
    assert np.isnan(loss)
    assert not gradient.any()


def test_pure_function_with_control_flow_stays_pure():
    @I.ir_module
    class Branch:
        @R.function
        def main(
            c: R.Tensor((), "bool"), x: R.Tensor((3,), "float64"), k: R.Tensor((3,), "float64")
        ) -> R.Tensor((3,), "float64"):
            if c:  # noqa: SIM108 (TVMScript)
                y = R.exp(k)
            else:
                y = R.sin(k)
            z = R.multiply(x, y)
            return z

    mod = gg.vjp(Branch, wrt="x")
    assert mod["main_vjp"].is_pure
    gradient = run(mod, "main_vjp", np.array(True), X, X, np.ones(3))[1]
    np.testing.assert_allclose(gradient, np.exp(X))
