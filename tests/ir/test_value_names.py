import numpy as np
import pytest
from onnx import helper
from tvm import relax

import graphgrad as gg
from graphgrad.errors import ArgumentError
from graphgrad.frontend.mode import specialize
from graphgrad.ir.value_names import equal_names, name_aliases_of, record_aliases
from tests.frontend.graphs import model_of, random


def identity_model():
    """Names of one value: x; h and its copies i, j; the output of a dropout that drops nothing."""
    nodes = [
        helper.make_node("Exp", ["x"], ["h"]),
        helper.make_node("Identity", ["h"], ["i"]),
        helper.make_node("Identity", ["i"], ["j"]),
        helper.make_node("Dropout", ["j"], ["d"]),
        helper.make_node("Mul", ["d", "w"], ["m"]),
        helper.make_node("Identity", ["m"], ["y"]),
    ]
    return gg.from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, {"w": random(3)}))


@pytest.mark.parametrize("name", ["h", "i", "j", "d", "m", "y"])
def test_every_name_of_a_value_can_be_differentiated_by(name):
    x, cotangent = random(3, seed=1), random(3, seed=2)
    f = gg.value_and_grad(identity_model(), wrt=[name], training=False)
    _, gradients = f({"x": x}, cotangent)
    expected = cotangent if name in "my" else cotangent * random(3)
    np.testing.assert_allclose(gradients[name], expected, rtol=1e-6)


def test_vjp_knows_them_too():
    module = specialize(identity_model(), False)
    assert {"i", "j", "d"} <= name_aliases_of(module["main"]).keys()
    types = gg.vjp(module, wrt=["j"])["main_vjp"].ret_ty
    assert [list(map(int, ty.shape)) for ty in types.fields[1].fields] == [[3]]


def test_what_a_converter_writes_takes_no_name_of_the_file():
    nodes = [helper.make_node("Elu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    model = gg.from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}))
    x, cotangent = random(3, seed=1), random(3, seed=2)
    _, gradients = gg.value_and_grad(model, wrt=["h"])({"x": x}, cotangent)
    np.testing.assert_array_equal(gradients["h"], -cotangent)


def test_two_names_of_one_value_are_given_at_once():
    with pytest.raises(ArgumentError, match="each once"):
        gg.value_and_grad(identity_model(), wrt=["h", "i"])


def test_constants_have_no_gradient():
    with pytest.raises(ArgumentError, match=r"'c' to differentiate .* or it is a constant"):
        gg.value_and_grad(identity_model(), wrt=["c"])


def test_a_name_of_several_variables_is_no_alias():
    """A gradient with respect to the wrong one would be silent."""
    ty = relax.TensorType([3], "float32")
    x, a, b, y = (relax.Var(name, ty) for name in ("x", "same", "same", "y"))
    block = relax.BindingBlock(
        [relax.VarBinding(a, x), relax.VarBinding(b, relax.op.exp(x)), relax.VarBinding(y, x)]
    )
    function = relax.Function([x], relax.SeqExpr([block], y), ty)
    assert equal_names(function) == [["x", "y"]]
    shorter = relax.Function([x], relax.SeqExpr([], x), ty)
    assert name_aliases_of(record_aliases(shorter, equal_names(function))) == {"y": "x"}
