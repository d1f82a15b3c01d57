import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax, te

import graphgrad as gg
from graphgrad.errors import ArgumentError, ModelError
from graphgrad.frontend.onnx_import import from_onnx

from .graphs import model_of, random, run_model

DOMAIN = "my.domain"


def custom_model(nodes, outputs, initializers=None, domain=DOMAIN):
    proto = model_of(nodes, {"x": [2, 3]}, outputs, initializers)
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto


def swish_model(**attributes):
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("Swish", ["h"], ["y"], name="act", domain=DOMAIN, **attributes),
    ]
    return custom_model(nodes, {"y": [2, 3]}, {"w": random(3, seed=1)})


def swish(inputs, attributes):
    (x,) = inputs
    return x * relax.op.sigmoid(attributes.get("beta", 1.0) * x)


def test_an_operator_of_the_users_own_is_trained_through():
    model = from_onnx(swish_model(beta=2.0), custom_ops={(DOMAIN, "Swish"): swish})
    x, w = random(2, 3), model.params["w"]
    cotangent = random(2, 3, seed=2)
    outputs, gradients = gg.value_and_grad(model)({"x": x}, cotangent)
    h = x * w
    gate = 1 / (1 + np.exp(-2 * h))
    np.testing.assert_allclose(outputs["y"], h * gate, rtol=1e-5)
    slope = gate + 2 * h * gate * (1 - gate)
    np.testing.assert_allclose(gradients["w"], (cotangent * slope * x).sum(0), rtol=1e-5)


def test_an_operator_given_by_a_tensor_expression():
    def te_swish(x, beta):
        return te.compute(x.shape, lambda *i: x(*i) / (1.0 + te.exp(-beta * x(*i))), name="swish")

    by_te = {(DOMAIN, "Swish"): lambda xs, attributes: gg.call_te(te_swish, *xs, **attributes)}
    models = [
        from_onnx(swish_model(beta=2.0), custom_ops=ops)
        for ops in (by_te, {(DOMAIN, "Swish"): swish})
    ]
    assert {row.op: row.provenance for row in gg.coverage(models[0]).rows} == {
        "relax.call_tir(te_swish)": "derived",
        "relax.multiply": "hand",
    }
    x, cotangent = random(2, 3), random(2, 3, seed=2)
    results = [gg.value_and_grad(model)({"x": x}, cotangent) for model in models]
    for given, expected in zip(*results, strict=True):
        for name, array in expected.items():
            np.testing.assert_allclose(given[name], array, rtol=1e-5, atol=1e-6)


def test_bindings_of_a_custom_operator_know_their_node():
    model = from_onnx(swish_model(), custom_ops={(DOMAIN, "Swish"): swish})
    spans = [b.value.span for b in model.mod["main"].body.blocks[0].bindings]
    assert all("act" in span.source_name.name for span in spans[1:])


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_standard_operator_may_be_replaced(domain):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = from_onnx(
        custom_model(nodes, {"y": [2, 3]}, domain=None),
        custom_ops={(domain, "Relu"): lambda inputs, attributes: relax.op.negative(inputs[0])},
    )
    np.testing.assert_array_equal(run_model(model, model.mod, random(2, 3)), -random(2, 3))


def test_several_outputs_an_input_left_out_and_attributes():
    seen = {}

    def split(inputs, attributes):
        seen.update(attributes)
        x, missing, w = inputs
        assert missing is None
        return x + w, relax.op.sum(x, axis=[1])

    table = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node(
        "Pair", ["x", "", "w"], ["y", "z"], domain=DOMAIN, mode="fast", sizes=[1, 2], table=table
    )
    proto = custom_model([node], {"y": [2, 3], "z": [2]}, {"w": random(3)})
    model = from_onnx(proto, custom_ops={(DOMAIN, "Pair"): split})
    x = random(2, 3)
    y, z = run_model(model, model.mod, x)
    np.testing.assert_allclose(y, x + random(3))
    np.testing.assert_allclose(z, x.sum(1), rtol=1e-5)
    assert (seen["mode"], seen["sizes"], seen["table"].tolist()) == ("fast", [1, 2], [1, 2])


def test_a_local_function_may_be_replaced():
    function = helper.make_function(
        DOMAIN,
        "Swish",
        ["x"],
        ["y"],
        [helper.make_node("Neg", ["x"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    proto = swish_model()
    proto.functions.append(function)
    x = random(2, 3)
    inlined = from_onnx(proto)
    np.testing.assert_allclose(run_model(inlined, inlined.mod, x), -x * inlined.params["w"])
    model = from_onnx(proto, custom_ops={(DOMAIN, "Swish"): swish})
    h = x * model.params["w"]
    np.testing.assert_allclose(run_model(model, model.mod, x), h / (1 + np.exp(-h)), rtol=1e-5)


@pytest.mark.parametrize(
    "custom_ops, message",
    [
        ([swish], "expected a dict, given a list"),
        ({"Swish": swish}, r"keys \(domain, operator\).*given 'Swish'"),
        ({(DOMAIN, ""): swish}, r"keys \(domain, operator\)"),
        ({(DOMAIN, "Swish"): 3}, r"expected a function of \(inputs, attributes\), given a int"),
    ],
)
def test_what_is_no_mapping_to_functions(custom_ops, message):
    with pytest.raises(ArgumentError, match=message):
        from_onnx(swish_model(), custom_ops=custom_ops)


def fails(inputs, attributes):
    raise KeyError("gamma")


@pytest.mark.parametrize(
    "function, message",
    [
        (fails, r"fails \(.*test_custom_ops\.py:\d+\) raised KeyError: 'gamma'"),
        (lambda inputs, attributes: 3.0, r"<lambda> \(.*\) must return a graphgrad Tensor.* float"),
        (lambda inputs, attributes: None, "must return a graphgrad Tensor .* a NoneType"),
        (lambda inputs, attributes: (inputs[0], inputs[0]), "returned 2 values, .* has 1 outputs"),
        (
            lambda inputs, attributes: relax.op.matmul(inputs[0], inputs[0]),
            "returned an expression that is not valid Relax",
        ),
    ],
)
def test_functions_that_go_wrong_are_named_with_their_node(function, message):
    with pytest.raises(ModelError, match=rf"node 'act' \(Swish\).*custom op .*{message}"):
        from_onnx(swish_model(), custom_ops={(DOMAIN, "Swish"): function})


def test_the_error_for_unknown_operators_says_how_to_give_them():
    with pytest.raises(ModelError, match=r"my\.domain::Swish \(1\): \['act'\][\s\S]*custom_ops="):
        from_onnx(swish_model())
