import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import graphgrad as gg
from graphgrad.ir.provenance import Provenance, read, span_of
from tests import unknown_ops
from tests.labels import label
from tests.running import F64, function, run


def arrays(*shapes, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in shapes]


@I.ir_module
class Nested:
    @R.function(private=True)
    def inner(x: R.Tensor(("n", 3), "float64")) -> R.Tensor(("n", 3), "float64"):
        y = R.multiply(x, x)
        return y

    @R.function
    def outer(x: R.Tensor((2, 3), "float64")) -> R.Tensor((2, 3), "float64"):
        cls = Nested
        y = cls.inner(x)
        z = cls.inner(y)
        return z

    @R.function
    def main(x: R.Tensor((2, 3), "float64")) -> R.Tensor((), "float64"):
        cls = Nested
        y = cls.outer(x)
        z = R.sum(y)
        return z


def test_calls_of_relax_functions_are_inlined():
    (x,) = arrays((2, 3))
    _, gradient = run(gg.vjp(Nested), "main_vjp", x, np.float64(1))
    np.testing.assert_allclose(gradient, 4 * x**3, rtol=1e-12)


def test_tvm_still_returns_silent_zeros_there():
    @I.ir_module
    class Stock:
        @R.function
        def sub(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            y = R.multiply(x, x)
            return y

        @R.function
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
            cls = Stock
            with R.dataflow():
                y = cls.sub(x)
                z = R.sum(y)
                R.output(z)
            return z

    x = np.ones(3, "float32")
    assert not run(relax.transform.Gradient("main")(Stock), "main_adjoint", x)[1].any()
    assert (run(gg.transform.Gradient("main")(Stock), "main_adjoint", x)[1] == 2).all()


def test_local_function_is_inlined():
    @I.ir_module
    class Local:
        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((), "float64"):
            @R.function
            def cube(a: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
                b = R.multiply(a, R.multiply(a, a))
                return b

            y = cube(x)
            z = R.sum(y)
            return z

    (x,) = arrays((3,))
    np.testing.assert_allclose(run(gg.vjp(Local), "main_vjp", x, np.float64(1))[1], 3 * x**2)


def test_recursion_is_refused():
    @I.ir_module
    class Recursive:
        @R.function
        def main(x: R.Tensor((3,), "float64")) -> R.Tensor((3,), "float64"):
            cls = Recursive
            y: R.Tensor((3,), "float64") = cls.main(x)
            return y

    with pytest.raises(
        gg.NotDifferentiableError, match="main → main: a function that calls itself"
    ):
        gg.vjp(Recursive)


def test_all_missing_ops_are_listed_at_once():
    def build(builder, x):
        y = builder.emit(unknown_ops.packed(x))
        y = builder.emit(unknown_ops.erf(y))
        y = builder.emit(unknown_ops.unlowered(y))
        return builder.emit(unknown_ops.packed(y))

    with pytest.raises(gg.MissingGradientError) as caught:
        gg.vjp(function(build, ((2,), F64)))
    assert [(op, len(places)) for op, places in caught.value.missing] == [
        ("graphgrad.test_packed", 2),
        ("graphgrad.test_unlowered", 1),
    ]
    message = str(caught.value)
    assert "graphgrad.test_packed ×2: lv, lv3" in message
    assert "what a packed function computes is unknown" in message
    assert "lowered to nothing that one could be derived from" in message


def test_missing_op_off_the_path_does_not_matter():
    def build(builder, x, y):
        return builder.emit(relax.op.multiply(x, builder.emit(unknown_ops.packed(y))))

    mod = function(build, ((2,), F64), ((2,), F64))
    gg.vjp(mod, wrt="x0")
    with pytest.raises(gg.MissingGradientError, match="test_packed"):
        gg.vjp(mod)


def test_kernel_without_a_gradient_is_reported_by_name():
    mod = function(lambda builder, x: builder.emit_te(unknown_ops.calls_out, x), ((3,), F64))
    with pytest.raises(gg.MissingGradientError, match=r"relax\.call_tir\(calls_out\)"):
        gg.vjp(mod)


def test_unused_parameter_gets_zeros():
    mod = function(lambda builder, x, y: builder.emit(relax.op.exp(x)), ((2,), F64), ((3,), F64))
    _, _, unused = run(gg.vjp(mod), "main_vjp", *arrays((2,), (3,), (2,)))
    assert unused.shape == (3,)
    assert not unused.any()


def test_path_through_nondifferentiable_op_gives_zeros():
    mod = function(lambda builder, x: builder.emit(relax.op.floor(x)), ((2,), F64))
    assert not run(gg.vjp(mod), "main_vjp", *arrays((2,), (2,)))[1].any()


def test_value_used_24_times():
    def build(builder, x):
        total = x
        for _ in range(23):
            total = builder.emit(relax.op.add(total, x))
        return total

    x, ct = arrays((3,), (3,))
    np.testing.assert_allclose(
        run(gg.vjp(function(build, ((3,), F64))), "main_vjp", x, ct)[1], 24 * ct
    )


def test_integer_inputs_have_no_cotangent_and_integer_outputs_take_none():
    def build(builder, x, i):
        return builder.emit(relax.Tuple([relax.op.multiply(x, x), relax.op.add(i, i)]))

    mod = gg.vjp(function(build, ((2,), F64), ((2,), "int64")))
    assert [p.name for p in mod["main_vjp"].params] == ["x0", "x1", "ct"]
    assert len(mod["main_vjp"].ret_ty.fields[1].fields) == 1


def test_nested_tuple_outputs_take_one_cotangent_each():
    def build(builder, x):
        inner = relax.Tuple([builder.emit(relax.op.exp(x)), x])
        return builder.emit(relax.Tuple([inner, builder.emit(relax.op.negative(x))]))

    x, *cts = arrays((2,), (2,), (2,), (2,))
    *_, gradient = run(gg.vjp(function(build, ((2,), F64))), "main_vjp", x, *cts)
    np.testing.assert_allclose(gradient, np.exp(x) * cts[0] + cts[1] - cts[2])


@pytest.mark.parametrize("wrt", ["lv", ["x0", "lv"], ["lv1", "lv"]])
def test_intermediate_values_by_name(wrt):
    def build(builder, x):
        y = builder.emit(relax.op.multiply(x, x))
        return builder.emit(relax.op.exp(y))

    x, ct = arrays((2,), (2,))
    expected = {"x0": 2 * x * np.exp(x * x) * ct, "lv": np.exp(x * x) * ct, "lv1": ct}
    results = run(gg.vjp(function(build, ((2,), F64)), wrt=wrt), "main_vjp", x, ct)[1:]
    names = [wrt] if isinstance(wrt, str) else wrt
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, expected[name])


def test_wrt_accepts_variables_of_the_original_function():
    mod = function(lambda b, x, y: b.emit(relax.op.multiply(x, y)), ((2,), F64), ((2,), F64))
    x, y, ct = arrays((2,), (2,), (2,))
    _, gradient = run(gg.vjp(mod, wrt=mod["main"].params[1]), "main_vjp", x, y, ct)
    np.testing.assert_allclose(gradient, x * ct)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"func": "mian"}, r"no Relax function 'mian'; it has \['main'\]"),
        ({"wrt": "x7"}, "has no value 'x7' .* did you mean one of"),
        ({"wrt": ["x0", "x0"]}, "each once"),
        ({"wrt": []}, "at least one"),
        ({"rules": "hand"}, "rules='hand': expected 'auto' or 'derived'"),
    ],
)
def test_bad_arguments(arguments, message):
    mod = function(lambda builder, x: builder.emit(relax.op.exp(x)), ((2,), F64))
    with pytest.raises(gg.ArgumentError, match=message):
        gg.vjp(mod, **arguments)


def test_integer_wrt_is_refused():
    mod = function(lambda b, x, i: b.emit(relax.op.exp(x)), ((2,), F64), ((2,), "int64"))
    with pytest.raises(gg.NotDifferentiableError, match=r"x1 has type .*only float tensors"):
        gg.vjp(mod, wrt="x1")


def test_function_without_float_output_is_refused():
    mod = function(lambda b, x: b.emit(relax.op.argmax(x, axis=0)), ((2,), F64))
    with pytest.raises(gg.NotDifferentiableError, match="returns no float tensor"):
        gg.vjp(mod)


def test_a_name_may_have_dots():
    mod = function(lambda builder, x: builder.emit(relax.op.sin(x)), ((3,), F64))
    mod = tvm.IRModule({"net.loss": mod["main"].with_attr("global_symbol", "net.loss")})
    (x,) = arrays((3,))
    once = gg.vjp(mod, "net.loss")
    _, gradient = run(once, "net.loss_vjp", x, np.ones(3))
    np.testing.assert_allclose(gradient, np.cos(x))
    assert "net.loss_vjp_vjp" in {v.name_hint for v in gg.vjp(once, "net.loss_vjp").functions}


def test_existing_name_is_refused():
    mod = function(lambda builder, x: builder.emit(relax.op.exp(x)), ((2,), F64))
    with pytest.raises(gg.ArgumentError, match="function 'main_vjp' already"):
        gg.vjp(gg.vjp(mod))


def test_result_is_well_formed_pure_relax_and_the_module_is_untouched():
    mod = function(lambda builder, x: builder.emit(relax.op.exp(x)), ((2,), F64))
    before = mod.script()
    result = gg.vjp(mod)
    assert mod.script() == before
    assert relax.analysis.check_well_formed(result)
    assert result["main_vjp"].is_pure
    tvm.ir.assert_structural_equal(result["main"], mod["main"])


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_parameters_that_are_added_have_new_names(grad_req):
    mod = function(lambda b, x, y: b.emit(relax.op.multiply(x, y)), ((2,), F64), ((2,), F64))
    name = "main"
    for order in range(3):
        mod = gg.vjp(mod, name, grad_req=grad_req)
        name = f"{name}_vjp"
        names = [param.name for param in mod[name].params]
        assert len(set(names)) == len(names), names
        assert order or names[:3] == ["x0", "x1", "ct"]
    assert "def main_vjp_vjp_vjp(x0: " in mod.script()


def test_names_of_the_function_are_left_alone():
    x, ct = (relax.Var(name, relax.TensorType([2], F64)) for name in ("x", "ct"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, ct]):
        builder.emit_func_output(builder.emit(relax.op.multiply(x, ct)))
    result = gg.vjp(builder.get(), wrt="ct")
    assert [param.name for param in result["main_vjp"].params] == ["x", "ct", "ct_1"]
    x, ct, cotangent = arrays((2,), (2,), (2,))
    np.testing.assert_allclose(run(result, "main_vjp", x, ct, cotangent)[-1], x * cotangent)


def test_of_a_function_without_a_tensor_parameter_it_is_said_what_it_takes():
    types = [relax.TensorType([2], F64), relax.TensorType([3], F64)]
    pair = relax.Var("pair", relax.TupleType(types))
    builder = relax.BlockBuilder()
    with builder.function("main", [pair]):
        builder.emit_func_output(builder.emit(relax.op.exp(relax.TupleGetItem(pair, 0))))
    with pytest.raises(gg.ArgumentError, match=r"tuples of those: .* wrt=\['pair'\]"):
        gg.vjp(builder.get())
    gg.vjp(builder.get(), wrt=["pair"])  # as it says
    mod = function(lambda b, i: b.emit(relax.op.astype(i, F64)), ((2,), "int64"))
    with pytest.raises(gg.ArgumentError, match=r"it takes x0: R.Tensor\(\(2,\), dtype=\"int64\"\)"):
        gg.vjp(mod)


def test_third_order():
    x = np.array([0.3, -0.7])
    one = np.ones(2)
    mod = function(lambda builder, x: builder.emit(relax.op.sin(x)), ((2,), F64))
    first = gg.vjp(mod, wrt="x0")
    second = gg.vjp(first, "main_vjp", wrt="x0")
    third = gg.vjp(second, "main_vjp_vjp", wrt="x0")
    zero = np.zeros(2)
    # outputs of main_vjp: (y, x̄); of main_vjp_vjp: ((y, x̄), x̄'); cotangents in that order
    results = run(third, "main_vjp_vjp_vjp", x, one, zero, one, zero, zero, one)
    np.testing.assert_allclose(results[-1], -np.cos(x), rtol=1e-12)


def test_match_cast_passes_the_cotangent_on():
    x = relax.Var("x", relax.TensorType(dtype=F64, ndim=1))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        shape = [tvm.tirx.Var("m", "int64")]
        y = builder.match_cast(x, relax.TensorType(shape, F64))
        builder.emit_func_output(builder.emit(relax.op.multiply(y, y)))
    mod = gg.vjp(builder.get())
    x, ct = arrays((3,), (3,))
    np.testing.assert_allclose(run(mod, "main_vjp", x, ct)[1], 2 * x * ct)


def test_mask_hides_an_infinite_derivative():
    def build(builder, x):
        positive = builder.emit(relax.op.greater(x, relax.const(0.0, F64)))
        root = builder.emit(relax.op.sqrt(x))
        return builder.emit(relax.op.where(positive, root, x))

    x = np.array([4.0, 0.0, -1.0])
    gradient = run(gg.vjp(function(build, ((3,), F64))), "main_vjp", x, np.ones(3))[1]
    np.testing.assert_allclose(gradient, [0.25, 1.0, 1.0])


def test_sqrt_at_zero_is_infinite_where_it_is_seen():
    mod = function(lambda builder, x: builder.emit(relax.op.sqrt(x)), ((1,), F64))
    assert np.isinf(run(gg.vjp(mod), "main_vjp", np.zeros(1), np.ones(1))[1]).all()


def test_half_precision_sums_in_float32():
    def build(builder, x, b):
        return builder.emit(relax.op.add(x, b))

    n = 4096
    mod = gg.vjp(function(build, ((n, 1), "float16"), ((1,), "float16")), wrt="x1")
    ct = np.ones((n, 1), "float16")
    gradient = run(mod, "main_vjp", ct, np.zeros(1, "float16"), ct)[1]
    assert gradient.dtype == np.float16
    assert gradient[0] == n  # a float16 sum stops at 2048


def test_each_gradient_binding_knows_its_rule():
    mod = gg.vjp(function(lambda builder, x: builder.emit(relax.op.negative(x)), ((2,), F64)))
    bindings = mod["main_vjp"].body.blocks[0].bindings
    origins = {b.var.name: read(b.value.span).origin for b in bindings if hasattr(b.value, "op")}
    assert origins == {"lv": None, "lv_ct": "hand"}


@pytest.mark.parametrize("op", [unknown_ops.erf, unknown_ops.swish], ids=label)
def test_bindings_of_a_derived_gradient_are_told(op):
    """Also where graphgrad has rules for what an op is written out as, and to second order."""

    def located(call):
        return relax.Call(call.op, call.args, call.attrs, [], span_of("node 7", "Mine"))

    mod = function(lambda builder, x: builder.emit(located(op(x))), ((2,), F64))
    name = "main"
    for _ in range(2):
        mod = gg.vjp(mod, name, wrt="x0")
        name = f"{name}_vjp"
        bindings = [b for block in mod[name].body.blocks for b in block.bindings]
        calls = [b.value for b in bindings if isinstance(b.value, relax.Call)]
        facts = {read(call.span) for call in calls}
        told = [Provenance("node 7", "Mine", "derived", primal=primal) for primal in (False, True)]
        assert facts == set(told)


def test_a_cast_of_a_tuples_field():
    extent = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([extent, 2], F64))
    pair = relax.Var("pair", relax.TupleType([x.ty, x.ty]))
    cast = relax.Var("cast", relax.TensorType([3, 2], F64))
    square = relax.Var("square", cast.ty)
    bindings = [
        relax.VarBinding(pair, relax.Tuple([x, x])),
        relax.MatchCast(cast, relax.TupleGetItem(pair, 0), cast.ty),
        relax.VarBinding(square, relax.op.multiply(cast, cast)),
    ]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], square)
    mod = gg.vjp(tvm.IRModule({"main": relax.Function([x], body, square.ty)}))
    (value,) = arrays((3, 2))
    np.testing.assert_allclose(run(mod, "main_vjp", value, np.ones((3, 2)))[1], 2 * value)
