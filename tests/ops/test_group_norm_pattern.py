"""Group norm that is found in terms of instance norm, and what is none or must stay as it is."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.ir.inline import inline_calls
from graphgrad.ir.write import write_program
from graphgrad.ops.group_norm_pattern import fuse_group_norms
from tests.peers import peer
from tests.running import function, run

N, C, G, H, W = 2, 6, 3, 4, 5
X = (N, C, H, W)
op = relax.op


def const(value, dtype="float64"):
    return relax.const(np.asarray(value), dtype)


def norm(emit, x, scale=1.0, shift=0.0, inside=(N, G, -1), back=X, axes=(2,)):
    """The norm alone; every step is emitted, so that it has a variable and a type."""
    grouped = emit(op.reshape(x, inside))
    channels = int(grouped.ty.shape[1])
    parameters = const(np.full(channels, scale)), const(np.full(channels, shift))
    y = emit(op.nn.instance_norm(grouped, *parameters, channel_axis=1, axes=list(axes)))
    return emit(op.reshape(y, back))


def affine(b, x, gamma, beta):
    scaled = b.emit(op.multiply(norm(b.emit, x), b.emit(op.reshape(gamma, (C, 1, 1)))))
    return op.add(b.emit(op.reshape(beta, (1, C, 1, 1))), scaled)


def read_twice(b, x):
    grouped = b.emit(op.reshape(x, (N, G, -1)))
    y = b.emit(op.nn.instance_norm(grouped, const([1.0] * G), const([0.0] * G), 1, [2]))
    return op.add(b.emit(op.reshape(y, X)), b.emit(op.reshape(grouped, X)))


def scaled_by_itself(b, x):
    y = norm(b.emit, x, inside=(1, 2, -1), back=(1, 6, 1, 1))
    return op.multiply(y, y)


FOUND = {
    "alone": (lambda b, x: norm(b.emit, x), [X]),
    "affine": (affine, [X, (C,), (C,)]),
    "scale": (lambda b, x, g: op.multiply(g, norm(b.emit, x)), [X, (C, 1, 1)]),
    "shift": (lambda b, x, g: op.add(norm(b.emit, x), g), [X, (1, C, 1, 1)]),
    "a plane for each place": (lambda b, x, g: op.multiply(norm(b.emit, x), g), [X, (H, W)]),
    "one number": (lambda b, x, g: op.multiply(norm(b.emit, x), g), [X, ()]),
    "several axes": (
        lambda b, x: norm(b.emit, x, inside=(N, G, 2, H, W), axes=(2, -1, -2)),
        [X],
    ),
    "scaled by itself": (scaled_by_itself, [(1, 6, 1, 1)]),
    "twice": (lambda b, x: norm(b.emit, norm(b.emit, x), inside=(N, 2, -1)), [X]),
}
OTHER = {
    "scale in the norm": (lambda b, x: norm(b.emit, x, scale=2.0), [X]),
    "shift in the norm": (lambda b, x: norm(b.emit, x, shift=0.5), [X]),
    "groups of instances": (lambda b, x: norm(b.emit, x, inside=(1, N * G, -1)), [X]),
    "no groups of channels": (lambda b, x: norm(b.emit, x, inside=(N, 4, -1)), [X]),
    "another shape": (lambda b, x: norm(b.emit, x, back=(N, C, W, H)), [X]),
    "some axes": (lambda b, x: norm(b.emit, x, inside=(N, G, 2, -1), axes=(3,)), [X]),
    "read twice": (read_twice, [X]),
}


def programs(build, shapes):
    mod = function(build, *[(shape, "float64") for shape in shapes])
    program = inline_calls(mod, "main")
    return program, fuse_group_norms(program, ())


def ops_of(program):
    return [value.op.name for _, value in program.bindings if isinstance(value, relax.Call)]


@pytest.mark.parametrize("case", FOUND)
def test_it_is_found_and_computes_the_same(case):
    build, shapes = FOUND[case]
    program, fused = programs(build, shapes)
    assert "relax.nn.group_norm" in ops_of(fused)
    assert "relax.nn.instance_norm" not in ops_of(fused)
    if case in ("affine", "scale", "shift"):  # they are taken in
        assert {"relax.multiply", "relax.add"}.isdisjoint(ops_of(fused))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    (expected,), (value,) = (run(write_program(p, "f"), "f", *arrays) for p in (program, fused))
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


def test_the_batch_may_be_symbolic():
    n = tirx.Var("n", "int64")
    program, fused = programs(
        lambda b, x: norm(b.emit, x, inside=(n, G, 2 * H * W), back=(n, C, H, W)), [(n, C, H, W)]
    )
    assert fused is not program


@pytest.mark.parametrize("case", OTHER)
def test_what_is_none_stays(case):
    program, fused = programs(*OTHER[case])
    assert fused is program


def test_what_somebody_asks_for_or_has_a_rule_for_stays():
    program, _ = programs(affine, [X, (C,), (C,)])
    by_op = {value.op.name: var for var, value in program.bindings}
    assert fuse_group_norms(program, [by_op["relax.nn.instance_norm"]]) is program
    partly = fuse_group_norms(program, [by_op["relax.multiply"]])
    assert "relax.nn.group_norm" in ops_of(partly)
    assert by_op["relax.multiply"].name in {var.name for var, _ in partly.bindings}
    for name in ("relax.nn.instance_norm", "relax.reshape", "relax.multiply"):
        assert fuse_group_norms(program, (), lambda each, name=name: each == name) is program


def file_of_norm():
    """A convolution and a group norm, as PyTorch's exporter writes it for opset 17."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((C, 3, 3, 3)),
        "gamma": rng.standard_normal((C, 1, 1)),
        "beta": rng.standard_normal((C, 1, 1)),
        "ones": np.ones(G),
        "zeros": np.zeros(G),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1] * 4),
        helper.make_node("Reshape", ["conv", "groups"], ["grouped"]),
        helper.make_node("InstanceNormalization", ["grouped", "ones", "zeros"], ["normal"]),
        helper.make_node("Shape", ["conv"], ["shape"]),
        helper.make_node("Reshape", ["normal", "shape"], ["channels"]),
        helper.make_node("Mul", ["channels", "gamma"], ["scaled"]),
        helper.make_node("Add", ["scaled", "beta"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    tensors.append(numpy_helper.from_array(np.array([0, G, -1]), "groups"))
    double = onnx.TensorProto.DOUBLE
    x, y = (helper.make_tensor_value_info(n, double, [N, k, H, W]) for n, k in (("x", 3), ("y", C)))
    graph = helper.make_graph(nodes, "norm", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_gradients_are_those_of_the_file_and_inner_values_keep_theirs():
    torch = peer("torch")
    model = gg.from_onnx(file_of_norm(), constants=["ones", "zeros"])
    wrt = ["x", "w", "gamma", "beta"]
    rng = np.random.default_rng(1)
    x, ct = rng.standard_normal((N, 3, H, W)), rng.standard_normal(X)
    _, grads = gg.value_and_grad(model, wrt=wrt)({"x": x}, cotangent=ct)
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, *(model.params[n] for n in wrt[1:]))]
    a, w, gamma, beta = leaves
    conv = torch.nn.functional.conv2d(a, w, padding=1)
    y = torch.nn.functional.group_norm(conv, G, gamma.flatten(), beta.flatten())
    y.backward(torch.tensor(ct))
    for name, leaf in zip(wrt, leaves, strict=True):
        np.testing.assert_allclose(grads[name], leaf.grad.numpy(), rtol=1e-8, atol=1e-9)
    for inner in ("normal", "grouped", "channels", "scaled"):
        _, found = gg.value_and_grad(model, wrt=[inner, "w"])({"x": x}, cotangent=ct)
        np.testing.assert_allclose(found["w"], grads["w"], rtol=1e-8, atol=1e-9)
        if inner in ("normal", "channels"):
            expected = (ct * model.params["gamma"]).reshape(found[inner].shape)
            np.testing.assert_allclose(found[inner], expected, rtol=1e-10)
