"""Promotion keeps a program's meaning, names, shapes and spans, and says what it cannot reach."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import graphgrad as gg
from graphgrad.check.promote import promote_to_float64
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.provenance import read, span_of
from tests.running import F64, function, run

op = relax.op


def low_floats(mod):
    """The lower floats that the text of a module's Relax functions still names."""
    text = "\n".join(
        mod[var].script() for var in mod.get_global_vars() if isinstance(mod[var], relax.Function)
    )
    return [dtype for dtype in ("float16", "bfloat16", "float32") if dtype in text]


def promoted(build, *types):
    mod = function(build, *types)
    result, obstacles = promote_to_float64(mod)
    assert relax.analysis.check_well_formed(result)
    return result, obstacles


X = np.array([[0.1, -1.7, 3.0], [2.5, 0.0, -0.3]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x, dt: op.add(x, relax.const(np.float32(0.1), dt)), X + 0.1),
        (op.astype, X),
        (lambda x, dt: op.astype(x, "float16"), X),
        (lambda x, dt: op.multiply(x, op.ones([2, 3], dt)), X),
        (lambda x, dt: op.multiply(x, op.full([2, 3], relax.const(2.0, dt), dt)), 2 * X),
        (lambda x, dt: op.add(x, op.astype(op.arange(0, 3, 1, "int64"), dt)), X + np.arange(3)),
        (lambda x, dt: op.add(x, op.arange(0, 3, 1, dt)), X + np.arange(3)),
        (lambda x, dt: op.matmul(x, op.permute_dims(x), out_dtype="float32"), X @ X.T),
        (lambda x, dt: op.clip(x, -0.25, 0.25), X.clip(-0.25, 0.25)),
        (lambda x, dt: op.astype(op.astype(x, "int32"), dt), np.trunc(X)),
        (lambda x, dt: op.concat(op.split(x, 3, axis=1), axis=1), X),
    ],
    ids=[
        "constant",
        "cast to itself",
        "cast to half",
        "ones",
        "full",
        "cast of integers",
        "arange",
        "out_dtype",
        "bounds",
        "integers between",
        "tuples",
    ],
)
def test_everything_becomes_float64(build, expected, dtype):
    mod, obstacles = promoted(lambda b, x: b.emit(b.normalize(build(x, dtype))), ((2, 3), dtype))
    assert not obstacles
    assert not low_floats(mod)
    (result,) = run(mod, "main", X)
    assert result.dtype == np.float64
    tolerance = 1e-2 if dtype != "float32" else 1e-7  # of the constants, which stay as they are
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=1e-15)


def test_conv_with_output_dtype():
    types = ((1, 2, 4, 4), "float16"), ((3, 2, 3, 3), "float16")
    mod, obstacles = promoted(
        lambda b, x, w: b.emit(op.nn.conv2d(x, w, out_dtype="float32")), *types
    )
    assert not obstacles
    assert not low_floats(mod)


def test_op_of_ours_that_names_a_dtype():
    from graphgrad.ops.define import call_op, define_op

    own = define_op(
        "promotion_probe",
        ["x"],
        lambda call: relax.TensorType(call.args[0].ty.shape, call.attrs["dtype"]),
        lambda call, x: tvm.topi.cast(x, call.attrs["dtype"]),
    )
    mod, obstacles = promoted(
        lambda b, x: b.emit(call_op(own, [x], dtype="float16", axes=[0, 1])), ((2, 3), "float32")
    )
    assert not obstacles
    assert not low_floats(mod)
    np.testing.assert_array_equal(run(mod, "main", X)[0], X)


def test_integers_and_booleans_stay():
    mod, _ = promoted(lambda b, x: b.emit(op.argmax(x, axis=1)), ((2, 3), "float32"))
    assert run(mod, "main", X)[0].tolist() == [2, 0]
    assert str(mod["main"].ret_ty.dtype) == "int64"


def test_names_shapes_and_spans_stay():
    x = relax.Var("x.1", relax.TensorType([tvm.tirx.Var("n", "int64"), 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            call = op.exp(x)
            located = relax.Call(call.op, call.args, call.attrs, [], span_of("Exp_1", "Exp"))
            result = builder.emit_output(located, "y.1")
        builder.emit_func_output(result)
    mod, _ = promote_to_float64(builder.get())
    main = mod["main"]
    binding = main.body.blocks[0].bindings[0]
    assert main.params[0].name == "x.1"
    assert str(main.params[0].ty.shape[0]) == "n"
    assert binding.var.name == builder.get()["main"].body.blocks[0].bindings[0].var.name
    assert read(binding.value.span).node == "Exp_1"


def test_calls_branches_and_local_functions():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def double(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            return R.add(x, x)

        @R.function
        def main(x: R.Tensor((3,), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor(
            (3,), "float32"
        ):
            cls = Module

            @R.function
            def local(z: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
                s = R.multiply(z, R.const(0.5, "float32"))
                return s

            if flag:
                a = cls.double(x)
                y = R.exp(a)
            else:
                y = local(x)
            return y

    mod, obstacles = promote_to_float64(Module)
    assert not obstacles
    assert not low_floats(mod)
    x = np.array([0.1, 0.2, 0.3])
    compiled = relax.VirtualMachine(gg.compile(relax.transform.LambdaLift()(mod)), tvm.cpu())
    for flag, expected in ((True, np.exp(2 * x)), (False, x / 2)):
        result = compiled["main"](*map(to_tensor, (x, np.array(flag))))
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-14)


def kernel_module(te_function, *types):
    return function(lambda b, x: b.emit_te(te_function, x), *types)


def test_kernel_of_loops_becomes_float64():
    mod, obstacles = promote_to_float64(kernel_module(tvm.topi.exp, ((2, 3), "float32")))
    assert not obstacles and not low_floats(mod)
    np.testing.assert_allclose(run(mod, "main", X)[0], np.exp(X), rtol=1e-15)
    assert not promote_to_float64(gg.vjp(mod))[1]


def test_kernel_in_tvmscript_is_checked_in_float64():
    @I.ir_module(s_tir=True)
    class Module:
        @T.prim_func(s_tir=True)
        def squared(A: T.Buffer((3,), "float32"), B: T.Buffer((3,), "float32")):
            for i in range(3):
                with T.sblock("squared"):
                    vi = T.axis.spatial(3, i)
                    a: T.let = A[vi] * T.float32(0.5)
                    B[vi] = a * a

        @R.function
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            cls = Module
            y = R.call_tir(cls.squared, (x,), out_ty=R.Tensor((3,), "float32"))
            return y

    told = str(gg.check_grads(Module))
    assert "in float64" in told and "float32" not in told


def test_kernels_of_several_parts_are_checked_together():
    def build(builder, x):
        y = builder.emit(gg.call_te(tvm.topi.exp, x))
        return builder.emit(gg.call_te(tvm.topi.tanh, y))

    assert "in float64" in str(gg.check_grads(function(build, ((2, 3), "float32"))))


def times_a_rounded_constant(x):
    return tvm.topi.multiply(x, tvm.tirx.const(float(np.float32(0.1)), "float32"))


def test_kernel_with_rounded_constants_stays_and_is_reported():
    mod, obstacles = promote_to_float64(
        kernel_module(times_a_rounded_constant, ((2, 3), "float32"))
    )
    (obstacle,) = obstacles
    assert "call_tir(times_a_rounded_constant" in obstacle
    assert "dtypes of its buffers" in obstacle
    assert relax.analysis.check_well_formed(mod)
    (result,) = run(mod, "main", X)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, result.astype("float32"))
    np.testing.assert_allclose(result, 0.1 * X, rtol=1e-6)


def test_kernel_that_graphgrad_made_of_expressions_becomes_float64():
    mod, obstacles = promote_to_float64(
        function(lambda b, x: b.emit(gg.call_te(tvm.topi.exp, x)), ((2, 3), "float32"))
    )
    assert not obstacles
    np.testing.assert_allclose(run(mod, "main", X)[0], np.exp(X), rtol=1e-15)
    assert not promote_to_float64(gg.vjp(mod))[1]


def test_kernel_with_several_outputs():
    mod, obstacles = promote_to_float64(
        kernel_module(
            lambda x: tvm.topi.split(times_a_rounded_constant(x), 3, axis=1), ((2, 3), "float32")
        )
    )
    assert len(obstacles) == 1
    assert relax.analysis.check_well_formed(mod)
    result = np.concatenate(run(mod, "main", X), 1)
    np.testing.assert_array_equal(result, result.astype("float32"))
    np.testing.assert_allclose(result, 0.1 * X, rtol=1e-6)


def test_kernel_of_integers_is_no_obstacle():
    mod, obstacles = promote_to_float64(
        kernel_module(lambda x: tvm.topi.add(x, x), ((2, 3), "int32"))
    )
    assert not obstacles
    assert run(mod, "main", X.astype("int32"))[0].dtype == np.int32


def test_packed_function_is_reported():
    def build(builder, x):
        call = relax.call_dps_packed("some.function", x, out_ty=relax.TensorType((2, 3), "float32"))
        return builder.emit(call)

    mod, (obstacle,) = promoted(build, ((2, 3), "float32"))
    assert "call_dps_packed" in obstacle
    assert str(mod["main"].ret_ty.dtype) == F64


def test_quantization_is_reported():
    def build(builder, x):
        scale, zero = relax.const(np.float32(0.5)), relax.const(np.int8(0))
        return builder.emit(op.quantize(x, scale, zero, axis=0))

    _, obstacles = promoted(build, ((2, 3), "float32"))
    assert ["relax.quantize" in text for text in obstacles] == [True]


def test_float64_module_is_unchanged():
    mod = function(lambda b, x: b.emit(op.exp(x)), ((2, 3), F64))
    result, obstacles = promote_to_float64(mod)
    assert not obstacles
    tvm.ir.assert_structural_equal(result["main"], mod["main"])


def test_what_is_no_module_is_refused():
    with pytest.raises(gg.ArgumentError, match="IRModule"):
        promote_to_float64("model.onnx")
