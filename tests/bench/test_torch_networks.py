"""Networks of torch's exporter: the file, its twin and its data belong together."""

import numpy as np
import pytest

from tests.peers import peer

SMALL = {
    "gpt": ((8,), "int64", {"length": 8, "width": 64, "heads": 2, "layers": 2}),
    "unet": ((3, 16, 16), "float32", {"channels": 64, "levels": 2}),
    "convnext": ((3, 16, 16), "float32", {"depths": (1, 2), "widths": (32, 64)}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "unet")) for name in SMALL]
)
def test_all_contenders_train_the_same(name, tmp_path):
    torch = peer("torch")
    from dataclasses import replace

    from contenders import ours, torch_step
    from specs import FAMILIES, exported, write
    from torch_networks import network_of

    example, dtype, settings = SMALL[name]
    spec = replace(
        FAMILIES[name],
        build=exported(name, example, dtype),
        batch=2,
        width=0.25,
        classes=12,
        settings=settings,
        words=12 * (dtype == "int64"),
    )
    workload = write(spec, tmp_path)
    examples, labels = workload.batch()
    assert examples.shape == (2, *example)
    session = peer("onnxruntime").InferenceSession(workload.proto().SerializeToString())
    (expected,) = session.run(None, {"input": examples})
    logits = network_of(workload.proto())(torch.from_numpy(examples)).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    assert labels.size * 12 == logits.size or labels.shape == (2,)
    runs = [ours.prepare(workload, 1), torch_step.prepare(workload, 1)]
    losses = [[run() for _ in range(3)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][2] < losses[0][0]
