"""Exported networks train alike with every plan of memory, bit for bit."""

import numpy as np
import pytest

import graphgrad as gg
from tests import torch_export
from tests import torch_image_nets as images
from tests import torch_sequence_nets as sequences
from tests.peers import peer
from tests.precision.test_families import as_dtype, build, is_trained
from tests.train.nets import held, tvms_plan

FAMILIES = ["densenet", "inception", "unet", "vit", "bert", "mobilenet_v2"]
IMAGES = [images.convnext, images.mobilenet_v3, images.efficientnet, images.shufflenet]
SEQUENCES = [sequences.gpt, sequences.lstm, sequences.gru, sequences.wavenet]


def losses(step, inputs, targets):
    return [float(step(*batch)) for batch in zip(inputs, targets, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [*FAMILIES, *IMAGES, *SEQUENCES], ids=lambda f: getattr(f, "__name__", f)
)
def test_steps_are_the_same(family):
    torch = peer("torch")
    net, inputs_of = build(family)
    tensors = [as_dtype(inputs_of(seed), torch.float32) for seed in (1, 2)]
    model = gg.from_onnx(torch_export.export(net.float(), tensors[0], is_trained(family)))
    shape = tuple(net.eval()(*tensors[0].values()).shape)
    targets = [np.random.default_rng(s).standard_normal(shape).astype("float32") for s in (1, 2)]
    inputs = [{name: x.numpy() for name, x in batch.items()} for batch in tensors]

    def step_within(memory):
        return gg.train_step(model, "mse", gg.optim.AdamW(1e-2), memory=memory)

    ordered, plain = step_within(None), step_within(None)
    with tvms_plan():
        expected = losses(ordered, inputs, targets)
    assert losses(plain, inputs, targets) == expected and held(plain) == held(ordered)
    whole = step_within(1.0).plan(inputs[0], targets[0])
    for budget in (whole.least, (whole.least + whole.unconstrained) // 2):
        step = step_within(budget)
        assert losses(step, inputs, targets) == expected
        assert held(step) == held(ordered)
        plan = step.plan(inputs[0], targets[0])
        # Where a kernel's own memory makes the peak, nothing that is repeated lowers it.
        assert plan.repeated > 0 or whole.least == whole.unconstrained
        assert plan.peak <= budget
