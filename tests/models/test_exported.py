"""Models from torch's exporter: every gradient follows torch's, by the accuracy policy.

In float64 each gradient is within 1e-8 of torch's by norm, relative to
max(‖r‖, 1e-6 · ‖whole gradient‖). In float32 the whole gradient is at most four times as far from
the float64 gradient as torch's own float32 gradient is; networks with ReLU are left out of that,
for the reason that `tests/train/test_resnet_follows_torch.py` gives.
"""

import copy
import io
import warnings

import numpy as np
import onnx
import pytest

import graphgrad as gg
from tests import torch_nets
from tests.peers import peer

IMAGES = ["vgg_bn", "densenet", "mobilenet_v2", "inception", "vit", "unet"]
MODELS = [*IMAGES, "bert"]
BATCH = 4


def inputs_of(name, dtype):
    """Return the inputs by name and the labels, as torch tensors."""
    torch = peer("torch")
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(BATCH) % 10
    if name == "bert":
        tokens = torch.randint(0, 30, (BATCH, 7), generator=generator)
        mask = torch.ones(BATCH, 7, dtype=torch.int64)
        mask[1, 4:] = 0
        return {"tokens": tokens, "mask": mask}, labels
    x = torch.randn(BATCH, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
    if name == "unet":
        labels = torch.randint(0, 10, (BATCH, 16, 16), generator=generator)
    return {"x": x}, labels


def build(name, seed=0):
    """Return a torch module in float64, with scales, shifts and statistics as if it had trained.

    As torch draws them, shifts are zero, so that activations stand exactly at a kink, where what a
    gradient is is a matter of convention: a dead ReLU6 gives zeros to the next one, which is
    exported as Clip, whose gradient passes on the closed interval.
    """
    torch = peer("torch")
    torch.manual_seed(seed)
    net = getattr(torch_nets, name)().double()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.ndim == 1:
                tensor.add_(0.1 * torch.rand_like(tensor))
    return net


def export(net, inputs, training, opset=17, dynamic=True):
    """Export a torch module, with a symbolic batch; its statistics stay as they are."""
    torch = peer("torch")
    buffer = io.BytesIO()
    net.train(training)
    state = copy.deepcopy(net.state_dict())
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            tuple(inputs.values()),
            buffer,
            dynamo=False,
            training=mode,
            do_constant_folding=False,
            input_names=list(inputs),
            output_names=["logits"],
            opset_version=opset,
            dynamic_axes={n: {0: "N"} for n in (*inputs, "logits")} if dynamic else None,
        )
    net.load_state_dict(state)
    return onnx.load_from_string(buffer.getvalue())


def torch_gradients(net, inputs, labels):
    torch = peer("torch")
    net.zero_grad()
    torch.nn.functional.cross_entropy(net(*inputs.values()), labels).backward()
    return {name: p.grad.double().numpy() for name, p in net.named_parameters()}


def our_gradients(proto, inputs, labels, names):
    f = gg.value_and_grad(gg.from_onnx(proto), wrt=names, loss="cross_entropy")
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return f({**arrays, "targets": labels.numpy()})[1]


def norm(gradients):
    return np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients.values()))


def assert_close(ours, reference, tolerance=1e-8):
    floor = 1e-6 * norm(reference)
    for name, expected in reference.items():
        error = np.linalg.norm(ours[name] - expected)
        assert error <= tolerance * max(np.linalg.norm(expected), floor), name


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, training):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    proto = export(net, inputs, training)
    reference = torch_gradients(net, inputs, labels)
    assert_close(our_gradients(proto, inputs, labels, list(reference)), reference)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_gradients_in_float32(name):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    exact = torch_gradients(net.train(False), inputs, labels)
    net.float()
    inputs, labels = inputs_of(name, torch.float32)
    theirs = torch_gradients(net, inputs, labels)
    ours = our_gradients(export(net, inputs, False), inputs, labels, list(exact))
    distance = [norm({k: g[k] - exact[k] for k in exact}) for g in (ours, theirs)]
    assert distance[0] <= 4 * distance[1]


@pytest.mark.parametrize(
    ("name", "opset"),
    [("mobilenet_v2", 11), ("mobilenet_v2", 20), ("vit", 13), ("vit", 18), ("bert", 15)],
)
def test_opsets(name, opset):
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    proto = export(net, inputs, True, opset)
    reference = torch_gradients(net, inputs, labels)
    assert_close(our_gradients(proto, inputs, labels, list(reference)), reference)


@pytest.mark.parametrize("name", IMAGES)
def test_input_gradients(name):
    """With the batch fixed at export."""
    torch = peer("torch")
    net = build(name)
    inputs, labels = inputs_of(name, torch.float64)
    x = inputs["x"].requires_grad_()
    proto = export(net, {"x": x.detach()}, False, dynamic=False)
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), labels), x)
    ours = our_gradients(proto, {"x": x.detach()}, labels, ["x"])["x"]
    assert_close({"x": ours}, {"x": expected.numpy()})
