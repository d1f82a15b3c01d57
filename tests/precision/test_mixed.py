"""Which op of a function computes in which dtype, and that nothing is rounded to infinity."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.inline import inline_calls
from graphgrad.precision.mixed import mix_precision

F32, I64 = "float32", "int64"


def program_of(params, body, precision="bfloat16", weights=("w", "b"), keep=()):
    """Return a function in a precision, as a program."""
    return mix_precision(
        inline_calls(module_of(params, body), "main"), _precision(precision), weights, keep
    )


def _precision(choice):
    return choice if isinstance(choice, gg.Precision) else gg.Precision(choice)


def module_of(params, body):
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(*ty)) for name, ty in params.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def dtypes(program):
    """Return the dtype of each op's result, by op, casts left out."""
    return {
        value.op.name.removeprefix("relax."): str(var.ty.dtype)
        for var, value in program.bindings
        if isinstance(value, relax.Call)
        and value.op.name != "relax.astype"
        and isinstance(var.ty, relax.TensorType)
    }


def casts(program):
    return [
        value for _, value in program.bindings if getattr(value.op, "name", "") == "relax.astype"
    ]


def run(program_module, *arrays):
    return relax.VirtualMachine(gg.compile(program_module), tvm.cpu())["main"](
        *(tvm.runtime.tensor(a) for a in arrays)
    ).numpy()


X, W, B = ((4, 8), F32), ((8, 8), F32), ((8,), F32)


def test_products_are_rounded_and_the_result_is_not():
    program = program_of({"x": X, "w": W}, lambda _, x, w: relax.op.matmul(x, w))
    assert dtypes(program) == {"matmul": "bfloat16"}
    assert str(program.result.ty.dtype) == F32
    assert len(casts(program)) == 3


def test_a_weight_is_cast_once():
    def body(builder, x, w):
        return relax.op.matmul(builder.emit(relax.op.matmul(x, w)), w)

    program = program_of({"x": X, "w": W}, body)
    assert sum(value.args[0].name == "w" for value in casts(program)) == 1


def test_a_bias_follows_and_an_input_does_not():
    def body(builder, x, w, b):
        return relax.op.add(builder.emit(relax.op.matmul(x, w)), b)

    assert dtypes(program_of({"x": X, "w": W, "b": B}, body))["add"] == "bfloat16"
    assert dtypes(program_of({"x": X, "w": W, "b": B}, body, weights=["w"]))["add"] == F32


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (relax.op.exp, F32),
        (relax.op.sqrt, F32),
        (relax.op.sum, F32),
        (relax.op.mean, F32),
        (relax.op.nn.softmax, F32),
        (relax.op.nn.log_softmax, F32),
        (relax.op.nn.relu, "bfloat16"),
        (relax.op.nn.gelu, "bfloat16"),
        (relax.op.permute_dims, "bfloat16"),
    ],
)
def test_what_comes_behind_a_product(op, dtype):
    program = program_of(
        {"x": X, "w": W}, lambda builder, x, w: op(builder.emit(relax.op.matmul(x, w)))
    )
    assert list(dtypes(program).values()) == ["bfloat16", dtype]


def test_what_follows_a_softmax_of_rounded_values_is_rounded():
    def body(builder, x, w):
        scores = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(x, w))))
        return relax.op.nn.relu(scores)

    assert dtypes(program_of({"x": X, "w": W}, body)) == {
        "matmul": "bfloat16",
        "nn.softmax": F32,
        "nn.relu": "bfloat16",
    }


def test_parts_of_a_tuple():
    def body(builder, x, w):
        parts = builder.emit(relax.op.split(builder.emit(relax.op.matmul(x, w)), 2, 1))
        return relax.op.add(builder.emit(parts[0]), builder.emit(parts[1]))

    program = program_of({"x": X, "w": W}, body)
    assert dtypes(program)["add"] == "bfloat16"


@pytest.mark.parametrize(
    ("dtype", "number"),  # 1e-39 fits bfloat16, which has the range of float32
    [("bfloat16", -3.4028235e38), ("float16", -3.4028235e38), ("float16", 1e-39)],
)
def test_a_number_that_does_not_fit_is_met_in_float32(dtype, number):
    """The least float32, as masks have it, would be infinite; a tiny epsilon zero."""

    def body(builder, x, w):
        product = builder.emit(relax.op.matmul(x, w))
        shifted = builder.emit(relax.op.expand_dims(relax.const(np.float32([number])), 0))
        return relax.op.add(product, shifted)

    program = program_of({"x": X, "w": W}, body, dtype)
    assert dtypes(program)["add"] == F32


def test_a_number_that_fits_follows():
    def body(builder, x, w):
        return relax.op.multiply(builder.emit(relax.op.matmul(x, w)), relax.const(0.125, F32))

    assert dtypes(program_of({"x": X, "w": W}, body))["multiply"] == "bfloat16"


def test_a_value_that_is_asked_for_keeps_its_dtype():
    def body(builder, x, w):
        product = builder.emit(relax.op.matmul(x, w), "product")
        return relax.op.nn.relu(product)

    program = program_of({"x": X, "w": W}, body, keep=["product"])
    assert str(program.variable("product").ty.dtype) == F32
    assert dtypes(program)["nn.relu"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_are_left_alone(dtype):
    ty = ((8, 8), dtype)
    program = program_of({"x": ty, "w": ty}, lambda _, x, w: relax.op.matmul(x, w), "float16")
    assert dtypes(program) == {"matmul": dtype}
    assert not casts(program)


def test_kernels_and_branches_take_what_they_took():
    def body(builder, x, w):
        product = builder.emit(relax.op.matmul(x, w))
        doubled = gg.call_te(lambda a: tvm.te.compute(a.shape, lambda *i: a(*i) * 2), product)
        return relax.op.nn.relu(doubled)

    program = program_of({"x": X, "w": W}, body)
    (kernel,) = (v for _, v in program.bindings if v.op.name == "relax.call_tir")
    assert str(kernel.args[1].fields[0].ty.dtype) == F32


def test_memory_that_is_overwritten_is_refused():
    @tvm.script.ir_module
    class Module:
        @tvm.script.relax.function(pure=False)
        def main(x: tvm.script.relax.Tensor((4,), "float32")):
            y = tvm.script.relax.call_inplace_packed(
                "f", x, inplace_indices=[0], ty_args=[tvm.script.relax.Tensor((4,), "float32")]
            )
            return y

    with pytest.raises(gg.ArgumentError, match="overwrites memory"):
        gg.transform.MixedPrecision("bfloat16")(Module)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_one_precision_changes_nothing(precision):
    program = inline_calls(
        module_of({"x": X, "w": W}, lambda _, x, w: relax.op.matmul(x, w)), "main"
    )
    assert mix_precision(program, gg.Precision(precision)) is program


def test_pass_rounds_what_the_policy_says():
    def body(builder, x, w, b):
        return relax.op.nn.relu(builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), b)))

    mod = module_of({"x": X, "w": W, "b": B}, body)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    mixed = gg.transform.MixedPrecision("bfloat16")(mod)
    assert int(mixed["main"].attrs["num_input"]) == 1
    generator = np.random.default_rng(0)
    x, w, b = (generator.standard_normal(s, F32) for s in ((4, 8), (8, 8), (8,)))
    low = [a.astype(ml_dtypes.bfloat16) for a in (x, w, b)]
    product = (low[0].astype(F32) @ low[1].astype(F32)).astype(ml_dtypes.bfloat16)
    expected = np.maximum(product + low[2], 0)
    result = run(mixed, x, w, b)
    assert result.dtype == F32
    # Inside a kernel values are float32, and rounded where they are stored.
    np.testing.assert_allclose(result, expected.astype(F32), rtol=2**-7, atol=2**-7)


def test_pass_before_gradient():
    def body(builder, x, w):
        return relax.op.sum(builder.emit(relax.op.matmul(x, w)))

    mod = gg.transform.MixedPrecision("bfloat16")(module_of({"x": X, "w": W}, body))
    adjoint = gg.transform.Gradient("main", require_grads="w")(mod)
    x, w = (np.random.default_rng(0).standard_normal(s, F32) for s in ((4, 8), (8, 8)))
    machine = relax.VirtualMachine(gg.compile(adjoint), tvm.cpu())
    _, gradients = machine["main_adjoint"](*map(tvm.runtime.tensor, (x, w)))
    column = x.astype(ml_dtypes.bfloat16).astype(F32).sum(0)
    result = gradients[0].numpy()
    assert result.dtype == F32
    np.testing.assert_allclose(result, np.tile(column[:, None], 8), rtol=2**-7)


def test_nodes_have_a_precision_of_their_own():
    from graphgrad.models import mlp

    model = gg.from_onnx(mlp())
    rows = gg.coverage(model, precision=gg.Precision("bfloat16", {"fc2": "float32"})).rows
    by_op = {(row.op, row.precision): row.where for row in rows}
    assert by_op["relax.matmul", "bfloat16"] == ["fc1"]
    assert by_op["relax.matmul", F32] == ["fc2"]
