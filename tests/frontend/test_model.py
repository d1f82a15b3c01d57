import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.errors import ArgumentError, InputError, ModelError
from graphgrad.frontend.model import Model
from tests.peers import peer

from .graphs import random, run_model, run_module

W, B = random(3, 2), random(2, seed=1)


def tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def function_of(params, build, name="main", dataflow=True):
    """A module with one function; `build(bb, *params)` returns what the function returns."""
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        if dataflow:
            with builder.dataflow():
                result = builder.emit_output(build(builder, *params))
        else:
            result = builder.emit(build(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


def linear(order=("x", "layer.w", "layer.b")):
    """y = x·w + b, with main's parameters in any order."""
    batch = tvm.tirx.Var("n", "int64")
    variables = {
        "x": tensor("x", batch, 3),
        "layer.w": tensor("layer.w", 3, 2),
        "layer.b": tensor("layer.b", 2),
    }
    x, w, b = variables.values()
    return function_of(
        [variables[name] for name in order],
        lambda bb, *_: relax.op.add(bb.emit(relax.op.matmul(x, w)), b),
    )


ARRAYS = {"layer.w": W, "layer.b": B}


@pytest.mark.parametrize("order", [("x", "layer.w", "layer.b"), ("layer.b", "x", "layer.w")])
def test_wraps_a_relax_module(order):
    model = Model(linear(order), ARRAYS)
    assert (model.inputs, model.outputs, model.state) == (["x"], ["output"], {})
    assert [var.name for var in model.mod["main"].params] == ["x", *model.params]
    assert model.trainable() == list(model.params) and model.proto is None
    assert relax.analysis.check_well_formed(model.mod)
    x = random(4, 3)
    np.testing.assert_allclose(run_model(model, model.mod, x), x @ W + B, rtol=1e-5, atol=1e-6)


def test_the_module_given_is_not_changed():
    module = linear(("layer.b", "x", "layer.w"))
    before = module.clone()
    Model(module, ARRAYS)
    tvm.ir.assert_structural_equal(module, before)


def test_arrays_are_copied():
    w = W.copy()
    model = Model(linear(), {"layer.w": w, "layer.b": tvm.runtime.tensor(B)})
    w[:] = 0
    np.testing.assert_array_equal(model.params["layer.w"], W)
    np.testing.assert_array_equal(model.params["layer.b"], B)


def test_torch_tensors():
    torch = peer("torch")
    model = Model(linear(), {"layer.w": torch.nn.Parameter(torch.from_numpy(W)), "layer.b": B})
    np.testing.assert_array_equal(model.params["layer.w"], W)


@pytest.mark.parametrize(
    "params, state, message",
    [
        ({"layer.w": W, "layer.c": B}, None, r"no parameter 'layer\.c'; close names are \["),
        ({"layer.w": W, "qqq": B}, None, r"no parameter 'qqq'; it has \['layer\.b'"),
        ({"layer.w": W.T}, None, r"expected float32\[3, 2\], given float32\[2, 3\]"),
        ({"layer.w": W[0]}, None, r"expected float32\[3, 2\], given float32\[2\]"),
        ({"layer.w": W.astype("float64")}, None, r"expected float32\[3, 2\], given float64"),
        (
            {"layer.w": "text"},
            None,
            "'layer.w': a value of type str with dtype <U4 is not an array",
        ),
        ([W, B], None, "expected a dict of parameters by name, given a list"),
        ({"layer.w": W}, {"layer.w": W}, r"\['layer\.w'\] are given both"),
        ({}, {"layer.b": W}, r"statistic 'layer\.b': expected float32\[2\]"),
    ],
)
def test_arrays_that_do_not_fit(params, state, message):
    with pytest.raises(InputError, match=message):
        Model(linear(), params, state)


def _without_main():
    return function_of([tensor("x", 2)], lambda bb, x: relax.op.exp(x), name="other")


def _with_tuple_parameter():
    pair = relax.Var("pair", relax.TupleType([relax.TensorType((2,), "float32")] * 2))
    return function_of([pair], lambda bb, p: relax.TupleGetItem(p, 0))


def _with_repeated_name():
    return function_of([tensor("x", 2), tensor("x", 2)], lambda bb, x, y: relax.op.add(x, y))


def _with_shape_result():
    return function_of([tensor("x", 2)], lambda bb, x: relax.op.shape_of(x))


@pytest.mark.parametrize(
    "module, message",
    [
        (_without_main(), r"no Relax function 'main'; it has \['other'\]"),
        (tvm.IRModule(), "no Relax function 'main'"),
        ("text", "expected a tvm.IRModule, given a str"),
        (_with_tuple_parameter(), "'pair' of main is a TupleType"),
        (_with_repeated_name(), r"several parameters of main are named \['x'\]"),
        (_with_shape_result(), "must return a tensor or a tuple of tensors"),
    ],
)
def test_modules_that_cannot_be_wrapped(module, message):
    with pytest.raises(ModelError, match=message):
        Model(module, {})


@pytest.mark.parametrize("dataflow", [True, False])
@pytest.mark.parametrize("literal", [True, False])
def test_outputs_become_a_literal_tuple(literal, dataflow):
    def build(builder, x):
        if literal:
            return relax.Tuple([builder.emit(relax.op.exp(x)), builder.emit(relax.op.negative(x))])
        return relax.op.split(x, 2)

    module = function_of([tensor("x", 4)], build, dataflow=dataflow)
    model = Model(module, {})
    main = model.mod["main"]
    assert isinstance(main.body.body, relax.Tuple) and len(main.body.blocks) == 1
    assert model.outputs == ["output_0", "output_1"]
    assert relax.analysis.check_well_formed(model.mod)
    x = random(4)
    for ours, expected in zip(run_module(model.mod, x), run_module(module, x), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_output_names():
    assert Model(linear(), ARRAYS, outputs=["logits"]).outputs == ["logits"]
    with pytest.raises(ModelError, match="main returns 1 tensors, but 2 names"):
        Model(linear(), ARRAYS, outputs=["a", "b"])


def test_integers_are_frozen():
    params = [tensor("x", 4), tensor("index", 2, dtype="int64"), tensor("w", 2)]
    module = function_of(
        params, lambda bb, x, i, w: relax.op.add(bb.emit(relax.op.take(x, i, axis=0)), w)
    )
    model = Model(module, {"index": np.array([0, 3]), "w": B})
    assert model.frozen == {"index"} and model.trainable() == ["w"]


def test_freeze():
    model = Model(linear(), ARRAYS)
    frozen = model.freeze("layer.w")
    assert frozen.trainable() == ["layer.b"] and frozen.frozen == {"layer.w"}
    assert model.trainable() == ["layer.w", "layer.b"]
    assert frozen.freeze("layer.b").trainable() == []
    with pytest.raises(ArgumentError, match=r"no parameter 'layer\.x'; close names are \['layer"):
        model.freeze("layer.x")
    with pytest.raises(ArgumentError, match="no parameter 'x'"):
        model.freeze("x")  # an input is no parameter


def test_input_types():
    params = [
        tensor("x", tvm.tirx.Var("n", "int64"), 3),
        tensor("i", dtype="int64"),
        relax.Var("u", relax.TensorType(None, "float16")),
        relax.Var("v", relax.TensorType(None, "bool", ndim=2)),
        relax.Var("seed", tvm.ir.PrimType("int64")),
    ]
    model = Model(function_of(params, lambda bb, x, *_: relax.op.exp(x)), {})
    assert model.input_types() == {
        "x": (("n", 3), "float32"),
        "i": ((), "int64"),
        "u": (None, "float16"),
        "v": (("?", "?"), "bool"),
        "seed": ((), "int64"),
    }


def test_repr():
    text = repr(Model(linear(), ARRAYS))
    assert text.startswith("Model(x: float32[n, 3] -> output: float32[n, 2]; 2 parameters with 8 ")
