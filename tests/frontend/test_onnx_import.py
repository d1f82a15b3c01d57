import io
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import helper

from graphgrad.errors import ModelError
from graphgrad.frontend.mode import specialize
from graphgrad.frontend.onnx_import import from_onnx
from tests.peers import peer

from .graphs import batch_norm_model, model_of, random, run_model, run_onnx


def test_path_and_proto_give_the_same(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(batch_norm_model(), path)
    for source in (str(path), path, batch_norm_model()):
        model = from_onnx(source)
        assert (model.inputs, model.outputs) == (["x"], ["y"])
        assert list(model.params) == ["scale", "bias"] and list(model.state) == ["mean", "var"]
        assert [var.name for var in model.mod["main"].params] == [
            "x",
            "scale",
            "bias",
            "mean",
            "var",
        ]


def test_arrays_are_those_of_the_file():
    w = random(2, 3, dtype="float64")
    proto = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 2]}, {}, {"w": w})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    proto.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [1, 3]))
    model = from_onnx(proto)
    assert model.params["w"].dtype == np.float64
    np.testing.assert_array_equal(model.params["w"], w)
    model.params["w"][:] = 0  # writable, and not the file's
    np.testing.assert_array_equal(from_onnx(proto).params["w"], w)


def test_missing_file():
    with pytest.raises(ModelError, match=r"there is no file none\.onnx"):
        from_onnx("none.onnx")


def test_float16_batch_norm():
    """Statistics may be wider than the data: the casts in between do not hide the state."""
    proto = batch_norm_model(0.8, 1)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    model = from_onnx(proto)
    outputs, state = run_model(model, specialize(model, True), random(4, 3, 5, dtype="float16"))
    assert outputs[0].dtype == np.float16 and [s.dtype for s in state] == [np.float32] * 2
    expected = 0.8 * model.state["mean"] + 0.2 * random(4, 3, 5).mean(axis=(0, 2))
    np.testing.assert_allclose(state[0], expected, atol=2e-3)


def small_network(nn):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(4)
            self.conv2 = nn.Conv2d(4, 4, 3, padding=1, groups=2)
            self.bn2 = nn.BatchNorm2d(4, momentum=0.3)
            self.pool = nn.MaxPool2d(2)
            self.fc = nn.Linear(16, 5)
            self.tied = nn.Linear(5, 5, bias=False)

        def forward(self, x):
            h = self.bn1(self.conv1(x)).relu()
            h = self.pool((h + self.bn2(self.conv2(h))).relu())
            return self.tied(self.tied(self.fc(h.flatten(1))))

    return Block()


def exported(torch, network, form):
    """Export by torch's legacy exporter, without folding."""
    file = io.BytesIO()
    mode = getattr(torch.onnx.TrainingMode, form)
    network.train(form == "TRAINING")
    torch.onnx.export(
        network,
        torch.from_numpy(random(2, 3, 4, 4)),
        file,
        dynamo=False,
        training=mode,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "N"}},
    )
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("form", ["TRAINING", "EVAL"])
def test_torch_network(form):
    """All parameters and statistics under torch's names, and torch's numbers in both forms."""
    torch = peer("torch")
    torch.manual_seed(0)
    network = small_network(torch.nn)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    proto = exported(torch, network, form)
    network.load_state_dict(before)  # tracing in training form shifts the statistics
    model = from_onnx(proto)
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    statistics = {name for name in buffers if "running" in name}
    assert set(model.state) == statistics and set(model.params) == set(parameters)
    for name, value in model.params.items():
        np.testing.assert_array_equal(value, parameters[name].detach().numpy())
    assert bool(model.notes) is (form == "EVAL")

    model.state.update({name: buffers[name].numpy().copy() for name in statistics})
    x = random(6, 3, 4, 4, seed=1)
    outputs, state = run_model(model, specialize(model, True), x)
    network.train()
    expected = network(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-5)
    for name, value in zip(model.state, state, strict=True):
        wanted = buffers[name].numpy()
        if name.endswith("running_var"):  # torch divides by n - 1, ONNX by n = 6·4·4
            kept = before[name].numpy() * (1 - getattr(network, name.split(".")[0]).momentum)
            wanted = kept + (wanted - kept) * 95 / 96
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_merged_initializers_are_in_the_file():
    """What the repair is for: if the exporter stops merging, it is needed no more."""
    torch = peer("torch")
    proto = exported(torch, small_network(torch.nn), "EVAL")
    identities = [node for node in proto.graph.node if node.op_type == "Identity"]
    assert {"bn2.weight", "bn2.running_var"} <= {node.output[0] for node in identities}


def test_inference_form_agrees_with_onnxruntime():
    torch, runtime = peer("torch"), peer("onnxruntime")
    proto = exported(torch, small_network(torch.nn), "EVAL")
    model = from_onnx(proto)
    x = random(6, 3, 4, 4, seed=1)
    outputs, state = run_model(model, specialize(model, None), x)
    expected = run_onnx(runtime, proto, {"x": x})
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-4, atol=1e-5)
    assert state == []


def test_weights_are_copied_one_by_one():
    """Not all at once: a model would take their memory once more while it is made."""
    count, size = 8, 1 << 20
    nodes = [helper.make_node("Mul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(count)]
    weights = {f"w{i}": random(size, seed=i) for i in range(count)}
    proto = model_of(nodes, {"h0": [size]}, {f"h{count}": [size]}, weights)
    tracemalloc.start()
    try:
        model = from_onnx(proto)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * count * weights["w0"].nbytes
    assert all((model.params[name] == values).all() for name, values in weights.items())
    assert all(array.flags.writeable for array in model.params.values())
