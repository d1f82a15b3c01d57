"""Casts of parameters at the beginning of a function, so that they are one launch; views."""

import pytest
import tvm
from tvm import relax, te, tirx

from graphgrad.lower.pipeline import lower
from tests.lower.cuda.sources import TARGET
from tests.lower.programs import tensor_type

op = relax.op


def called(function, *types):
    """Return the names of the kernels that a function calls, in order."""
    params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(function(*params))
        builder.emit_func_output(result)
    lowered = lower(builder.get(), TARGET)
    return [
        binding.value.op.name_hint
        for block in lowered["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
    ]


def half(x):
    return op.astype(x, "bfloat16")


def layers(x, *weights):
    """Products of half precision, each with its own weights."""
    for weight in weights:
        x = op.matmul(x, half(weight))
    return x


def test_casts_of_parameters_are_one_launch():
    names = called(
        layers, tensor_type(64, 64, dtype="bfloat16"), *[tensor_type(64, 64) for _ in range(3)]
    )
    assert names[0] == "cast_horizontal"
    assert not any(name.startswith("cast") for name in names[1:])


def test_a_cast_of_what_is_computed_stays():
    def function(x, y):
        product = op.matmul(x, y)
        return op.matmul(half(product), half(op.permute_dims(product)))

    # Behind a cast of a parameter, which moves.
    names = called(lambda x, y: op.add(function(x, y), half(x)), *[tensor_type(64, 64)] * 2)
    product = next(n for n, name in enumerate(names) if "matmul" in name)
    assert any("cast" in name for name in names[product:])
    assert sum("cast" in name and "matmul" not in name for name in names[:product]) <= 1


@pytest.mark.parametrize("shape", [(32, 64), (512, 384)], ids=str)
def test_another_shape_is_a_view_however_large(shape):
    """Kernels whose threads have several elements are not recognized."""

    def function(x):
        y = op.reshape(op.exp(x), [shape[1], shape[0]])
        return op.add(op.sum(y, [0]), op.max(y, [0]))

    assert not any(
        name == "reshape" for name in called(function, tensor_type(*shape, dtype="bfloat16"))
    )


def test_a_kernel_that_is_given_an_extent_is_no_cast():
    n = tirx.Var("n", "int64")
    zeros = te.create_prim_func([n, te.compute((n, 3), lambda *_: tirx.const(0.0), name="zeros")])
    x = relax.Var("x", tensor_type(n, 3))
    builder = relax.BlockBuilder()
    kernel = builder.add_func(zeros.with_attr("tirx.noalias", True), "zeros")
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.call_tir(kernel, [n], tensor_type(n, 3)))
        builder.emit_func_output(result)
    assert "zeros" in [name.name_hint for name in lower(builder.get(), TARGET).functions]
