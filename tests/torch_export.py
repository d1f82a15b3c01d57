"""The networks of `torch_nets` as ONNX files, by torch's exporter, with inputs that they take."""

import copy
import io
import warnings

import onnx

from tests import torch_nets
from tests.peers import peer

IMAGES = ["vgg_bn", "densenet", "mobilenet_v2", "inception", "vit", "unet"]
NETWORKS = [*IMAGES, "bert"]


def inputs_of(name, dtype, batch=4, seed=1):
    """Return the inputs by name and the labels, as torch tensors."""
    torch = peer("torch")
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(batch) % 10
    if name == "bert":
        tokens = torch.randint(0, 30, (batch, 7), generator=generator)
        mask = torch.ones(batch, 7, dtype=torch.int64)
        mask[1:2, 4:] = 0
        return {"tokens": tokens, "mask": mask}, labels
    x = torch.randn(batch, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
    if name == "unet":
        labels = torch.randint(0, 10, (batch, 16, 16), generator=generator)
    return {"x": x}, labels


def build(name, seed=0):
    """Return one of the networks in float64, as if it had trained."""
    return as_if_trained(getattr(torch_nets, name), seed)


def as_if_trained(make, seed=0):
    """Return a torch module in float64, with scales, shifts and statistics as if it had trained.

    As torch draws them, shifts are zero, so that activations stand exactly at a kink, where what a
    gradient is is a matter of convention: a dead ReLU6 gives zeros to the next one, which is
    exported as Clip, whose gradient passes on the closed interval.
    """
    torch = peer("torch")
    torch.manual_seed(seed)
    net = make().double()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.ndim == 1:
                tensor.add_(0.1 * torch.rand_like(tensor))
    return net


def export(net, inputs, training, opset=17, dynamic=True, fold=False):
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
            do_constant_folding=fold,
            input_names=list(inputs),
            output_names=["logits"],
            opset_version=opset,
            dynamic_axes={n: {0: "N"} for n in (*inputs, "logits")} if dynamic else None,
        )
    net.load_state_dict(state)
    return onnx.load_from_string(buffer.getvalue())


def role_network(name, seed=0):
    """Return a network of `torch_role_nets` in float32, and its inputs by name."""
    torch = peer("torch")
    from tests import torch_role_nets as nets

    torch.manual_seed(seed)
    make = getattr(nets, name)
    inputs = {
        name: torch.randint(0, nets.VOCABULARY, shape) if name == "tokens" else torch.randn(shape)
        for name, shape in nets.INPUTS[make].items()
    }
    return make(), inputs


def export_dynamo(net, inputs, training):
    """Export a torch module by torch's newer exporter; return the file before and after optimizing.

    The latter is what ``optimize=True`` gives, which is the default.
    """
    torch, _ = peer("torch"), peer("onnxscript")
    net.train(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            net,
            tuple(inputs.values()),
            dynamo=True,
            optimize=False,
            verbose=False,
            input_names=list(inputs),
            output_names=["logits"],
        )
        plain = program.model_proto
        program.optimize()
    return plain, program.model_proto
