import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as stock_from_onnx
from tvm.relax.frontend.onnx import onnx_frontend

from graphgrad.errors import ModelError
from graphgrad.frontend.mode import specialize
from graphgrad.frontend.onnx_import import from_onnx
from graphgrad.ir.provenance import Provenance, read
from tests.peers import peer

from .graphs import (
    CHANNELS,
    batch_norm_arrays,
    batch_norm_model,
    batch_norm_node,
    model_of,
    op_names,
    random,
    run_model,
    run_onnx,
)

X = random(4, CHANNELS, 5)


def bindings(model):
    return [b for block in model.mod["main"].body.blocks for b in block.bindings]


@pytest.mark.parametrize("momentum", [0.9, 0.5, 0.3, 0.0, 1.0])
@pytest.mark.parametrize("training_mode", [0, 1])
def test_momentum_means_the_same_as_in_onnx(momentum, training_mode):
    """Whatever form the file is in, its momentum says how training updates the statistics."""
    runtime = peer("onnxruntime")
    training_file = batch_norm_model(momentum, 1, give_statistics=True)
    expected = run_onnx(runtime, training_file, {"x": X})
    model = from_onnx(batch_norm_model(momentum, training_mode))
    outputs, state = run_model(model, specialize(model, True), X)
    for ours, onnx_value in zip([*outputs, *state], expected, strict=True):
        np.testing.assert_allclose(ours, onnx_value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "opset, outputs, attrs, training",
    [
        (15, (), {"training_mode": 1}, True),
        (15, (), {}, False),
        (14, ("m", "v"), {"training_mode": 1}, True),
        (9, (), {}, False),
        (9, ("m", "v", "sm", "sv"), {}, True),
    ],
)
def test_the_form_in_the_file(opset, outputs, attrs, training):
    shape = [4, CHANNELS, 5]
    node = batch_norm_node("x", "y", outputs=outputs, **attrs)
    proto = model_of([node], {"x": shape}, {"y": shape}, batch_norm_arrays(), opset=opset)
    assert bool(bindings(from_onnx(proto))[0].value.attrs.training) is training


def test_statistics_among_the_outputs_of_the_graph():
    model = from_onnx(batch_norm_model(0.8, 1, give_statistics=True))
    assert model.outputs == ["y", "new_mean", "new_var"]
    assert isinstance(model.mod["main"].body.body, relax.Tuple)
    _, mean, var = run_model(model, model.mod, X)
    arrays = batch_norm_arrays()
    np.testing.assert_allclose(
        mean, 0.8 * arrays["mean"] + 0.2 * X.mean(axis=(0, 2)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(var, 0.8 * arrays["var"] + 0.2 * X.var(axis=(0, 2)), rtol=1e-5)


def test_attributes_are_the_decimals_that_were_meant():
    """0.9 is stored as 0.8999999762: in float64 that would show."""
    attrs = bindings(from_onnx(batch_norm_model(0.9)))[0].value.attrs
    assert (attrs.momentum, attrs.epsilon) == (1 - 0.9, 1e-5)


def test_names_are_those_of_the_file_verbatim():
    nodes = [
        helper.make_node("Add", ["input.1", "onnx::Add_3"], ["/block.0/Add_output_0"]),
        helper.make_node("Relu", ["/block.0/Add_output_0"], ["42"]),
    ]
    proto = model_of(nodes, {"input.1": [3]}, {"42": [3]}, {"onnx::Add_3": random(3)})
    model = from_onnx(proto)
    assert (model.inputs, list(model.params), model.outputs) == (
        ["input.1"],
        ["onnx::Add_3"],
        ["42"],
    )
    assert [b.var.name for b in bindings(model)] == ["/block.0/Add_output_0", "42"]


def test_stock_importer_changes_names():
    nodes = [helper.make_node("Add", ["input.1", "onnx::Add_3"], ["y"])]
    proto = model_of(nodes, {"input.1": [3]}, {"y": [3]}, {"onnx::Add_3": random(3)})
    with pytest.warns(UserWarning, match="Renaming name"):
        main = stock_from_onnx(proto, keep_params_in_input=True)["main"]
    assert [var.name for var in main.params] == ["input_1", "Add_3"]


def test_every_binding_knows_its_node():
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="/fc/Gemm", transB=1),
        helper.make_node("Elu", ["h"], ["e"]),
        helper.make_node("Split", ["e"], ["y", "z"], name="halves", axis=1),
    ]
    proto = model_of(
        nodes, {"x": [2, 3]}, {"y": [2, 2], "z": [2, 2]}, {"w": random(4, 3), "b": random(4)}
    )
    model = from_onnx(proto)
    found = [read(b.value.span) for b in bindings(model)]
    assert found[:3] == [Provenance("/fc/Gemm", "Gemm")] * 3
    assert found[-3:] == [Provenance("halves", "Split")] * 3
    assert set(found[3:-3]) == {Provenance("Elu_1", "Elu")}


@pytest.mark.parametrize("opset", [7, 11, 12, 17, 21])
@pytest.mark.parametrize("as_node", [False, True])
def test_dropout_keeps_its_rate(opset, as_node):
    if opset < 12:
        nodes, arrays = [helper.make_node("Dropout", ["x"], ["y"], ratio=0.25)], {}
    else:
        ratio = numpy_helper.from_array(np.float32(0.25), "r")
        nodes = [helper.make_node("Constant", [], ["r"], value=ratio)] if as_node else []
        nodes.append(helper.make_node("Dropout", ["x", "r"], ["y"]))
        arrays = {} if as_node else {"r": np.float32(0.25)}
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3]}, arrays, opset=opset))
    assert bindings(model)[0].value.op.name == "relax.nn.dropout"
    assert float(bindings(model)[0].value.attrs.rate) == 0.25
    assert model.inputs == ["x"] and not model.params


@pytest.mark.parametrize("computed, setting", [("r", "ratio"), ("t", "training_mode")])
def test_dropout_with_computed_settings(computed, setting):
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"], name="drop")
    arrays = {"r": np.float32(0.5), "t": np.bool_(True)}
    proto = model_of([node], {"x": [3]}, {"y": [3]}, arrays)
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != computed]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    kind = TensorProto.FLOAT if computed == "r" else TensorProto.BOOL
    proto.graph.input.append(helper.make_tensor_value_info(computed, kind, []))
    with pytest.raises(ModelError, match=f"'drop' .*its {setting} is computed or an input"):
        from_onnx(proto)


def test_integer_initializers_are_constants():
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["h"]),
        helper.make_node("Gather", ["h", "index"], ["y"]),
    ]
    arrays = {"shape": np.array([3, 2]), "index": np.array([2, 0])}
    model = from_onnx(model_of(nodes, {"x": [2, 3]}, {"y": [2, 2]}, arrays))
    assert not model.params and not model.frozen and len(model.mod["main"].params) == 1
    x = random(2, 3)
    np.testing.assert_array_equal(run_model(model, model.mod, x), x.reshape(3, 2)[[2, 0]])


def test_shape_arithmetic_stays_symbolic():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    arrays = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([6])}
    model = from_onnx(model_of(nodes, {"x": ["N", 2, 3]}, {"y": ["N", 6]}, arrays))
    x = random(5, 2, 3)
    np.testing.assert_array_equal(run_model(model, model.mod, x), x.reshape(5, 6))


def test_a_node_that_cannot_be_translated_is_named_and_nothing_is_printed(capsys):
    node = batch_norm_node("x", "y", spatial=0, name="norm")
    shape = [4, CHANNELS, 5]
    proto = model_of([node], {"x": shape}, {"y": shape}, batch_norm_arrays(), opset=7)
    message = r"^node 'norm' \(BatchNormalization\) cannot be imported: spatial=0 .*$"
    with pytest.raises(ModelError, match=message):
        from_onnx(proto)
    assert capsys.readouterr().out == ""


def test_an_output_may_be_an_input_or_appear_twice():
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3], "z": [3]}))
    x = random(3)
    y, z = run_model(model, model.mod, x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, np.maximum(x, 0))


def test_branches_can_be_imported():
    def branch(op_type):
        output = helper.make_tensor_value_info(op_type, TensorProto.FLOAT, [3])
        return helper.make_graph([helper.make_node(op_type, ["x"], [op_type])], "b", [], [output])

    node = helper.make_node(
        "If", ["c"], ["h"], then_branch=branch("Relu"), else_branch=branch("Neg")
    )
    proto = model_of([node, helper.make_node("Exp", ["h"], ["y"])], {"x": [3]}, {"y": [3]})
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model = from_onnx(proto)
    x = random(3)
    for condition, expected in ((True, np.maximum(x, 0)), (False, -x)):
        y = run_model(model, model.mod, x, np.bool_(condition))
        np.testing.assert_allclose(y, np.exp(expected), rtol=1e-6)


def test_the_stock_importer_is_left_as_it_was():
    before = dict(vars(onnx_frontend.ONNXGraphImporter)), dict(vars(onnx_frontend))
    from_onnx(batch_norm_model())
    assert before == (dict(vars(onnx_frontend.ONNXGraphImporter)), dict(vars(onnx_frontend)))


def test_imports_at_the_same_time_do_not_mix():
    protos = [batch_norm_model(momentum) for momentum in (0.1, 0.4, 0.6, 0.9)]
    found = {}

    def work(index):
        model = from_onnx(protos[index])
        found[index] = float(bindings(model)[0].value.attrs.momentum)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == pytest.approx({0: 0.9, 1: 0.6, 2: 0.4, 3: 0.1})


USUAL_OPS = {
    "Conv": ([(2, 3, 8, 8), (4, 3, 3, 3)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "MaxPool": ([(2, 3, 8, 8)], {"kernel_shape": [2, 2]}),
    "AveragePool": ([(2, 3, 8, 8)], {"kernel_shape": [2, 2]}),
    "GlobalAveragePool": ([(2, 3, 8, 8)], {}),
    "Gemm": ([(2, 3), (3, 4), (4,)], {}),
    "MatMul": ([(2, 3), (3, 4)], {}),
    "Add": ([(2, 3), (3,)], {}),
    "Sub": ([(2, 3), (3,)], {}),
    "Mul": ([(2, 3), (3,)], {}),
    "Div": ([(2, 3), (3,)], {}),
    "Relu": ([(2, 3)], {}),
    "Sigmoid": ([(2, 3)], {}),
    "Tanh": ([(2, 3)], {}),
    "Softmax": ([(2, 3)], {}),
    "LogSoftmax": ([(2, 3)], {}),
    "Flatten": ([(2, 3, 4)], {}),
    "Transpose": ([(2, 3)], {}),
    "ReduceMean": ([(2, 3)], {"axes": [1]}),
    "Concat": ([(2, 3), (2, 3)], {"axis": 1}),
    "Identity": ([(2, 3)], {}),
}


@pytest.mark.parametrize("op_type", USUAL_OPS)
def test_ops_of_the_usual_networks_stay_relax_ops(op_type):
    """A call_tir would hide the op from the gradient rules."""
    shapes, attrs = USUAL_OPS[op_type]
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    node = helper.make_node(op_type, list(inputs), ["y"], **attrs)
    proto = model_of([node], inputs, {})
    proto.graph.output.append(helper.make_empty_tensor_value_info("y"))
    proto = onnx.shape_inference.infer_shapes(proto)
    assert "relax.call_tir" not in op_names(from_onnx(proto).mod)


def test_local_functions_in_functions_with_attributes():
    """Elu(alpha=3)(Elu(alpha=2)(x)), the alphas handed down."""
    inner_node = helper.make_node("Elu", ["a"], ["b"])
    inner_node.attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    standard, own = helper.make_opsetid("", 17), helper.make_opsetid("f", 1)
    inner = helper.make_function("f", "Bend", ["a"], ["b"], [inner_node], [standard], ["slope"])
    nodes = [
        helper.make_node("Bend", ["a"], ["t"], domain="f", slope=2.0),
        helper.make_node("Bend", ["t"], ["b"], domain="f", slope=3.0),
    ]
    outer = helper.make_function("f", "Twice", ["a"], ["b"], nodes, [standard, own])
    calls = [
        helper.make_node("Twice", ["x"], ["h"], domain="f"),
        helper.make_node("Twice", ["h"], ["y"], domain="f"),
    ]
    proto = model_of(calls, {"x": [3]}, {"y": [3]})
    proto.functions.extend([inner, outer])
    proto.opset_import.append(own)
    model = from_onnx(proto)
    expected = x = random(3)
    for alpha in (2, 3, 2, 3):
        expected = np.where(expected > 0, expected, alpha * np.expm1(expected))
    np.testing.assert_allclose(run_model(model, model.mod, x), expected, rtol=1e-5)


def test_an_output_may_be_an_initializer():
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = from_onnx(model_of(nodes, {"x": [3]}, {"y": [3], "w": [3]}, {"w": random(3)}))
    y, w = run_model(model, model.mod, random(3))
    np.testing.assert_array_equal(y, random(3) ** 2)
    np.testing.assert_array_equal(w, random(3))


def test_errors_of_tvm_are_one_line():
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    proto = model_of([node], {"x": [2, 3]}, {"y": [2, 2]}, {"w": random(4, 2)})
    with pytest.raises(ModelError, match=r"^node 'product' \(MatMul\) cannot be imported: [^\n]+$"):
        from_onnx(proto)


def test_errors_of_tvm_name_ops_in_a_word():
    proto = model_of([helper.make_node("Erf", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT32
    with pytest.raises(ModelError, match=r"cannot be imported: relax\.erf requires the input"):
        from_onnx(proto)


def test_the_tensors_of_a_sequence_are_outputs():
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])]
    proto = model_of(nodes, {"x": [3]}, {})
    proto.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    assert from_onnx(proto).outputs == ["s[0]", "s[1]"]
