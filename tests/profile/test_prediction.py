"""What a step takes on a GPU, predicted: what is counted, by whom it is asked for, and errors."""

import json
import sys

import numpy as np
import onnx
import pytest

import graphgrad as gg
from graphgrad import models
from graphgrad.cli.main import main
from graphgrad.errors import ArgumentError, InputError, LoweringError
from graphgrad.lower.cuda import compiler
from graphgrad.lower.cuda.library.cost import RATES
from graphgrad.lower.cuda.library.select import SWITCH
from graphgrad.profile.prediction import predict
from graphgrad.runtime.cudnn.backend import library_path
from graphgrad.train.recipe import recipe
from tests.lower.cuda.sources import needs_nvcc
from tests.peers import required

BATCH = (256, 256)
"""Of examples by features."""


def step(precision="float32", target="h200", **options):
    model = gg.from_onnx(models.mlp((BATCH[1], 512, 16)))
    return recipe(
        model, "mse", gg.optim.SGD(0.1), None, target, 0, "auto", precision=precision, **options
    )


def arrays():
    model = gg.from_onnx(models.mlp((BATCH[1], 512, 16)))
    inputs = {name: np.zeros(BATCH, "float32") for name in model.inputs}
    return inputs, np.zeros((BATCH[0], 16), "float32")


@needs_nvcc
def test_a_step_is_counted_call_by_call_and_named():
    prediction = predict(step(libraries=False), *arrays())
    weights = 4 * (BATCH[1] * 512 + 512 * 16)
    assert prediction.bytes > 4 * weights  # read forwards and backwards, and updated
    assert prediction.launches >= len(prediction.calls) and prediction.library_calls == 0
    floor = 1e3 * max(prediction.bytes / RATES[90].bytes, prediction.launches * 2e-6)
    assert prediction.milliseconds >= floor
    nodes = {node for call in prediction.calls for node in call.nodes}
    assert {"fc1", "fc2", "activation1"} <= nodes
    assert {call.phase for call in prediction.calls} >= {"forward", "backward", "update"}
    costliest = [sum(c.cost.seconds for c in calls) for calls in prediction.costliest(3)]
    assert costliest == sorted(costliest, reverse=True) and len(costliest) == 3
    assert "graphgrad's alone" in str(prediction)


@needs_nvcc
def test_calls_of_cudnn_are_named_by_their_contraction(monkeypatch):
    monkeypatch.delenv(SWITCH)
    required("cuDNN", library_path() is not None)
    prediction = predict(step("bfloat16", "a100"), *arrays())
    assert (prediction.arch, prediction.libraries) == ("sm_80", None)
    of_library = [call for call in prediction.calls if call.cost.is_of_library]
    assert prediction.library_calls == len(of_library) > 0
    assert {call.nodes for call in of_library} <= {("fc1",), ("fc2",)}
    assert {call.phase for call in of_library} == {"forward", "backward"}


def test_what_cannot_be_predicted(monkeypatch):
    with pytest.raises(ArgumentError, match=r"for GPUs alone, of h200 \(sm_90\).*llvm"):
        predict(step(target="llvm"), *arrays())
    with pytest.raises(ArgumentError, match="nothing is known of the speed of GPUs of sm_86"):
        predict(step(target={"kind": "cuda", "arch": "sm_86"}), *arrays())
    inputs, targets = arrays()
    with pytest.raises(InputError):
        predict(step(), {name: array[:, 1:] for name, array in inputs.items()}, targets)
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(LoweringError, match=r"no CUDA compiler .*nvcc on the PATH.*graphgrad\[c"):
        predict(step(), inputs, targets)


@needs_nvcc
def test_the_command(tmp_path, capsys):
    path = str(tmp_path / "mlp.onnx")
    onnx.save(models.mlp((4, 5, 3)), path)
    arguments = ["bench", path, "--predict", "--target", "h200", "--precision", "tf32", "--json"]
    assert main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == path and facts["precision"] == "tf32" and facts["arch"] == "sm_90"
    total = 1e3 * sum(call["seconds"] for call in facts["calls"])
    assert facts["predicted_milliseconds"] == pytest.approx(total)
    assert facts["bytes"] == sum(call["bytes"] for call in facts["calls"]) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile"], "runs nothing"),
        (["--against", "torch"], "leave --predict out"),
        (["--target", "h300"], "accepted: a kind"),
        ([], "for GPUs alone"),
    ],
)
def test_bad_usage(tmp_path, capsys, options, message):
    path = str(tmp_path / "mlp.onnx")
    onnx.save(models.mlp((4, 5, 3)), path)
    assert main(["bench", path, "--predict", *options]) == 2
    assert message in capsys.readouterr().err
