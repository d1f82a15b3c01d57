"""Steps and gradients of transformers with attention in blocks."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphgrad as gg
from graphgrad.ir.calls import calls_op
from graphgrad.ops.attention_pattern import fuse_attention
from graphgrad.ops.fused_attention import ATTENTION
from graphgrad.train import recipe
from tests.peers import peer

BATCH, HEADS, POSITIONS, FEATURES = 2, 2, 140, 16
SHAPE = [BATCH, HEADS, POSITIONS, FEATURES]


def model(scale=0.25):
    """softmax(scale · q kᵀ + causal mask) v · w, with weights w of each feature."""
    mask = np.where(np.tri(POSITIONS, dtype=bool), 0, -np.inf).astype("float32")
    constants = {"scale": np.float32(scale), "mask": mask}
    w = np.linspace(0.5, 1.5, FEATURES, dtype="float32")
    nodes = [
        *(
            helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value))
            for name, value in constants.items()
        ),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Mul", ["mixed", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "qkv"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def inputs():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(SHAPE).astype("float32") for name in "qkv"}


@pytest.fixture
def found(monkeypatch):
    """For each program that was searched, how often it has attention as an op."""
    counts = []

    def recorded(*arguments):
        program = fuse_attention(*arguments)
        counts.append(sum(calls_op(value, ATTENTION) for _, value in program.bindings))
        return program

    monkeypatch.setattr(recipe, "fuse_attention", recorded)
    return counts


def truth(x):
    """The loss Σ y² and its gradients in float64, by PyTorch."""
    torch = peer("torch")
    q, k, v = (torch.from_numpy(x[n]).double().requires_grad_() for n in "qkv")
    w = torch.linspace(0.5, 1.5, FEATURES, dtype=torch.float64)
    attend = torch.nn.functional.scaled_dot_product_attention
    y = attend(q, k, v, is_causal=True, scale=0.25) * w
    return y.detach().numpy(), [g.numpy() for g in torch.autograd.grad((y * y).sum(), [q, k, v])]


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-5), ("bfloat16", 2e-2)])
def test_gradients_follow_torch(found, precision, tolerance):
    x = inputs()
    y, gradients = truth(x)
    function = gg.value_and_grad(gg.from_onnx(model()), wrt=["q", "k", "v"], precision=precision)
    results, computed = function(x, cotangent={"y": (2 * y).astype("float32")})
    assert found == [1]
    assert np.abs(results["y"] - y).max() < tolerance * np.abs(y).max()
    for name, expected in zip("qkv", gradients, strict=True):
        assert np.abs(computed[name] - expected).max() < tolerance * np.abs(expected).max()


def test_files_of_gradients_have_no_op_of_ours(found, tmp_path):
    proto = gg.gradient_to_onnx(gg.from_onnx(model()), tmp_path / "gradient.onnx", wrt=["q"])
    assert not found
    assert {node.domain for node in proto.graph.node} == {""}


def test_short_rows_are_computed_in_blocks_within_a_budget(found, monkeypatch):
    monkeypatch.setattr("tests.train.test_attention.POSITIONS", 40)
    monkeypatch.setattr("tests.train.test_attention.SHAPE", [BATCH, HEADS, 40, FEATURES])
    for memory in (None, 1 << 24):
        function = gg.value_and_grad(gg.from_onnx(model()), wrt=["q"], memory=memory)
        function(inputs(), cotangent={"y": np.ones(SHAPE, "float32")})
    assert found == [0, 1]
