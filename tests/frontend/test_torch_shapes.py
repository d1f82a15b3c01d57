"""What torch's exporter writes for shapes, with a symbolic batch and sequence."""

import io

import numpy as np
import onnx
import pytest

from graphgrad.frontend.onnx_import import from_onnx
from tests.peers import peer

from .graphs import op_names, random, run_model

SHAPE_OPS = {"relax.shape_of", "relax.tensor_to_shape"}


def view(torch, x):
    return x.view(x.size(0), -1)


def flatten(torch, x):
    return x.flatten(1)


def heads(torch, x):
    batch, length, width = x.shape
    h = x.reshape(batch, length, 2, width // 2).permute(0, 2, 1, 3)
    scores = (h @ h.transpose(-2, -1)) * h.size(-1) ** -0.5
    return (scores.softmax(-1) @ h).transpose(1, 2).reshape(batch, length, width)


def attention(torch, x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def positions(torch, x):
    steps = torch.arange(x.size(1)).unsqueeze(0).expand(x.size(0), -1)
    return x + steps.unsqueeze(-1).to(x.dtype)


def class_token(torch, x):
    token = torch.linspace(0, 1, 4).view(1, 1, 4)
    return torch.cat([token.expand(x.size(0), -1, -1), x], 1)


def zeros(torch, x):
    return torch.cat([x, torch.zeros(x.size(0), 1, x.size(2))], 1)


def mean_by_hand(torch, x):
    return x.sum(1) / x.size(1)


def unflatten(torch, x):
    return x.unflatten(2, (2, 2)).flatten(0, 1)


def masked(torch, x):
    mask = torch.triu(torch.ones(x.size(1), x.size(1)), 1).bool()
    return (x @ x.transpose(1, 2)).masked_fill(mask, -1e9)


@pytest.mark.parametrize(
    "function",
    [
        view,
        flatten,
        heads,
        attention,
        positions,
        class_token,
        zeros,
        mean_by_hand,
        unflatten,
        masked,
    ],
)
def test_batch_and_length_stay_symbolic(function):
    torch = peer("torch")

    class Network(torch.nn.Module):
        def forward(self, x):
            return function(torch, x)

    file = io.BytesIO()
    # What reads the length as a number when it is traced has a fixed length.
    axes = {0: "N"} if function in (masked,) else {0: "N", 1: "T"}
    torch.onnx.export(
        Network(),
        torch.from_numpy(random(2, 5, 4)),
        file,
        dynamo=False,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": axes},
    )
    model = from_onnx(onnx.load_from_string(file.getvalue()))
    assert not SHAPE_OPS & set(op_names(model.mod))
    x = random(3, 7 if 1 in axes else 5, 4)
    expected = function(torch, torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run_model(model, model.mod, x), expected, rtol=1e-4, atol=1e-5)
