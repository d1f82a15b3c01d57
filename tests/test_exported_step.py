"""Exports run by TVM's runtime alone, and what an exported step refuses."""

import json
import shutil

import numpy as np
import pytest
import tvm
from safetensors.numpy import save_file

import graphgrad as gg
from graphgrad.exported_step import (
    ExportedStep,
    ExportedStepError,
    FolderError,
    InputError,
    MachineError,
    StateError,
)
from graphgrad.exported_step import machine as machine_module
from graphgrad.exported_step.folder import digest_of
from graphgrad.models.resnet import basic_block, resnet
from tests.exports import run_alone
from tests.frontend.graphs import random
from tests.labels import label
from tests.peers import peer
from tests.train.nets import held, perceptron
from tests.train.test_dropout import network

ADAM = gg.optim.Adam(0.01)
MOMENTUM = gg.optim.SGD(0.1, momentum=0.9)
BATCH = random(6, 4), np.arange(6) % 3


def images(seed):
    generator = np.random.default_rng(seed)
    return random(4, 1, 8, 8, seed=seed), generator.integers(0, 10, 4)


def rows(seed):
    return random(6, 4, seed=seed), (np.arange(6) + seed) % 3


def values(seed):
    return random(8, 6, seed=seed), random(8, 3, seed=seed + 50)


def residual():
    """A step of the first block of `resnet_digits`."""
    options = {"width": 0.25, "stem": "cifar", "channels": 1, "size": 8, "batch": 4}
    return gg.train_step(gg.from_onnx(resnet("block", basic_block, (1,), **options)))


def dropping():
    return gg.train_step(network(), "mse", ADAM, seed=5)


def unaligned(array):
    """Return a copy that starts four bytes behind a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, "uint8")
    start = -memory.ctypes.data % 64 + 4
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def reseal(folder, **changes):
    """Change a manifest as its writer would have written it."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "sha256": digest_of(manifest)}), encoding="utf-8"
    )


@pytest.fixture(scope="module")
def compiled():
    """A step after two steps, compiled for two sets of shapes."""
    step = gg.train_step(perceptron(), optimizer=ADAM)
    for seed in range(2):
        step(*rows(seed))
    step.evaluate(random(6, 4))
    step.evaluate(random(2, 4))
    return step


@pytest.fixture(scope="module")
def made(compiled, tmp_path_factory):
    """Folders: its export, one without weights, and the file of its state."""
    root = tmp_path_factory.mktemp("made")
    compiled.export(root / "whole")
    compiled.export(root / "bare", shapes={"input": (6, 4)}, weights=False)
    compiled.save(root / "saved")
    return root


@pytest.fixture
def folder(made, tmp_path):
    """A copy of the export with weights."""
    return shutil.copytree(made / "whole", tmp_path / "export")


@pytest.fixture(scope="module")
def loaded(made):
    """An exported step that no test changes."""
    return ExportedStep(made / "whole")


@pytest.fixture
def exported(made):
    return ExportedStep(made / "whole")


@pytest.fixture
def original(compiled, made):
    """The step that was exported, where it was then."""
    compiled.load(made / "saved")
    return compiled


def check_alone(step, export, batch, results):
    """Assert that, with neither compiler nor graphgrad, an export goes on as the step does."""
    batches = [batch(seed) for seed in range(1, 5)]
    losses, outputs = run_alone(export, batches, results)
    assert losses == [float(step(*each)) for each in batches]
    expected = step.evaluate(batches[0][0])
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert outputs[name].tobytes() == array.tobytes()
    reached, count = held(step), step.steps
    step.load(f"{results}.state")
    assert held(step) == reached and step.steps == count


def test_alone(original, made, tmp_path):
    check_alone(original, made / "whole", rows, tmp_path / "results")


@pytest.mark.parametrize("build, batch", [(residual, images), (dropping, values)], ids=label)
def test_alone_with_statistics_or_a_seed(tmp_path, build, batch):
    step = build()
    step(*batch(0))
    step.export(tmp_path / "export")
    check_alone(step, tmp_path / "export", batch, tmp_path / "results")


def test_it_starts_where_the_step_was(original, exported):
    assert held(exported) == held(original)
    assert (exported.steps, exported.skipped) == (2, 0)
    assert exported.learning_rate == original.learning_rate


def test_both_go_on_alike_from_each_others_files(original, exported, tmp_path):
    exported.learning_rate = original.learning_rate = 0.5
    assert exported(*rows(2)) == float(original(*rows(2)))
    exported.save(tmp_path / "exported", extra={"epoch": 3})
    original.save(tmp_path / "original", extra={"epoch": 4})
    assert (tmp_path / "exported").stat().st_size == (tmp_path / "original").stat().st_size
    assert original.load(tmp_path / "exported") == {"epoch": 3}
    assert exported.load(tmp_path / "original") == {"epoch": 4}
    assert exported.learning_rate == 0.5 and exported.steps == 3
    assert exported(*rows(3)) == float(original(*rows(3)))
    assert held(exported) == held(original)


def test_every_set_of_shapes(original, exported):
    for count in (6, 2):
        x = random(count, 4, seed=9)
        ((name, expected),) = original.evaluate(x).items()
        assert exported.evaluate({"input": x})[name].tobytes() == expected.tobytes()
    assert np.isfinite(exported(random(2, 4), np.arange(2)))


def test_a_step_that_is_not_finite_changes_nothing(exported):
    before = held(exported)
    loss = exported(np.full((6, 4), np.inf, "float32"), BATCH[1])
    assert not np.isfinite(loss)
    assert held(exported) == before and (exported.steps, exported.skipped) == (3, 1)


def test_loss_that_is_not_waited_for(original, exported):
    loss = exported.enqueue(*BATCH)
    assert isinstance(loss, tvm.runtime.Tensor) and not loss.shape
    assert float(loss.numpy()) == float(original(*BATCH))


@pytest.mark.parametrize(
    "given",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: a.astype(a.dtype.newbyteorder(">")),
        unaligned,
        tvm.runtime.tensor,
    ],
    ids=["order", "strides", "byte order", "unaligned", "tvm"],
)
def test_arrays_of_any_kind(original, exported, given):
    assert exported(*map(given, BATCH)) == float(original(*BATCH))


def test_torch_tensors(original, exported):
    torch = peer("torch")
    memory = torch.zeros(BATCH[0].size + 1)
    misaligned = memory[1:].view(BATCH[0].shape).copy_(torch.from_numpy(BATCH[0].copy()))
    strided = torch.from_numpy(BATCH[0].T.copy()).T.requires_grad_()
    for x in (misaligned, strided):
        assert exported(x, torch.from_numpy(BATCH[1])) == float(original(*BATCH))


def test_what_is_handed_in_stays_the_callers(exported):
    x, y = tvm.runtime.tensor(BATCH[0]), BATCH[1].copy()
    for _ in range(3):
        exported(x, y)
    assert x.numpy().tobytes() == BATCH[0].tobytes() and (y == BATCH[1]).all()


def test_copies_are_handed_out(exported):
    before = held(exported)
    for group in (exported.params, exported.optimizer_state["first_moment"]):
        for array in group.values():
            array[...] = 7
    assert held(exported) == before


X, Y = BATCH


@pytest.mark.parametrize(
    "arguments, message",
    [
        (({"x": X}, Y), r"given inputs \['x'\], but the model has \['input'\]"),
        (({"input": X, "more": X}, Y), "given inputs"),
        ((X.astype("float64"), Y), "input 'input': expected dtype float32, given float64"),
        ((X[:3], Y[:3]), r"shapes \(\(3, 4\),\): the export is for 'input' \(6, 4\), or 'input'"),
        ((np.array(["a"]), Y), "no array of numbers"),
        (([[1.0], [2.0, 3.0]], Y), "cannot be read as an array"),
        ((X,), "targets are missing"),
        ((X, Y[:3]), r"targets: expected shape \(6,\), given \(3,\)"),
        ((X, Y.astype("float32")), "targets: expected int64, given float32"),
        ((X, Y - 1), "targets: -1 is out of range; they go from 0 to 2"),
        ((X, Y + 1), "targets: 3 is out of range"),
    ],
    ids=[
        "name", "superfluous", "dtype", "shape", "text", "ragged", "no targets", "few targets",
        "float labels", "negative label", "large label",
    ],
)  # fmt: skip
def test_bad_inputs_change_nothing(loaded, arguments, message):
    before = held(loaded)
    with pytest.raises(InputError, match=message):
        loaded(*arguments)
    assert held(loaded) == before and loaded.steps == 2


@pytest.mark.parametrize("rate", [-1, np.inf, np.nan, "0.1", True, 1e39])
def test_bad_learning_rates(loaded, rate):
    with pytest.raises(InputError, match="learning_rate"):
        loaded.learning_rate = rate
    assert loaded.learning_rate == ADAM.learning_rate


def test_weights_from_elsewhere(made, tmp_path):
    model = perceptron()
    arrays = {name: random(*array.shape, seed=4) for name, array in model.params.items()}
    save_file({name: arrays[name] for name in reversed(arrays)}, tmp_path / "weights")
    expected = gg.train_step(gg.Model(model.mod, arrays), optimizer=ADAM)
    losses = [float(expected(*rows(seed))) for seed in range(2)]
    for weights in (arrays, tmp_path / "weights"):
        step = ExportedStep(made / "bare", weights=weights)
        assert step.steps == 0
        assert [step(*rows(seed)) for seed in range(2)] == losses
        assert held(step) == held(expected)


def test_weights_are_copied(made):
    arrays = {name: tvm.runtime.tensor(a) for name, a in perceptron().params.items()}
    before = {name: tensor.numpy().tobytes() for name, tensor in arrays.items()}
    ExportedStep(made / "bare", weights=arrays)(*BATCH)
    assert {name: tensor.numpy().tobytes() for name, tensor in arrays.items()} == before


def test_a_saved_state_in_place_of_weights(made, original):
    step = ExportedStep(made / "bare", weights=made / "saved")
    assert held(step) == held(original) and step.steps == 2


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a: a.pop("fc1.bias"), r"missing \['fc1.bias'\]"),
        (lambda a: a.update(more=np.zeros(1)), r"unknown \['more'\]"),
        (lambda a: a.update({"fc1.bias": np.zeros(2, "float32")}), "'fc1.bias': expected shape"),
        (lambda a: a.update({"fc1.bias": np.zeros(5)}), "'fc1.bias': expected dtype float32"),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_weights_that_do_not_fit(made, change, message):
    arrays = dict(perceptron().params)
    change(arrays)
    with pytest.raises(InputError, match=message):
        ExportedStep(made / "bare", weights=arrays)


def test_no_weights(made):
    with pytest.raises(FolderError, match="exported without weights"):
        ExportedStep(made / "bare")


def test_states_of_others(loaded, made, tmp_path):
    gg.train_step(perceptron(), optimizer=MOMENTUM).save(tmp_path / "momentum")
    gg.train_step(perceptron(), optimizer=gg.optim.Adam(0.01, betas=(0.5, 0.9))).save(
        tmp_path / "settings"
    )
    gg.train_step(perceptron((4, 3)), optimizer=ADAM).save(tmp_path / "model")
    (tmp_path / "damaged").write_bytes((made / "saved").read_bytes()[:-1])
    before = held(loaded)
    for name, message in [
        ("momentum", "another model or optimiser"),
        ("settings", "was saved by Adam"),
        ("model", "another model or optimiser"),
        ("damaged", "damaged"),
        ("missing", "no file"),
    ]:
        with pytest.raises(StateError, match=message):
            loaded.load(tmp_path / name)
    with pytest.raises(StateError, match="cannot write"):
        loaded.save(tmp_path / "missing" / "state")
    assert held(loaded) == before


@pytest.mark.parametrize(
    "name, message",
    [
        ("manifest.json", "manifest.json is damaged"),
        ("step-0.so", "step-0.so is damaged"),
        ("state.safetensors", "state.safetensors is damaged"),
        ("exported_step/step.py", "step.py is damaged"),
    ],
)
def test_a_changed_byte(folder, name, message):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(FolderError, match=message):
        ExportedStep(folder)


@pytest.mark.parametrize("name", ["manifest.json", "step-1.so", "state.safetensors"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FolderError, match=name):
        ExportedStep(folder)


def test_a_format_of_the_future(folder):
    reseal(folder, format="graphgrad-export-2")
    with pytest.raises(FolderError, match="no export in the format graphgrad-export-1"):
        ExportedStep(folder)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tvm": "0.99"}, "exported for TVM 0.99"),
        ({"host": {"system": "Plan9", "machine": "x86_64"}}, "exported for Plan9 on x86_64"),
        (
            {"flags": ["sse9"], "processor": "m1"},
            "for the processor m1, but this one lacks sse9",
        ),
    ],
    ids=["tvm", "system", "processor"],
)
def test_another_machine(folder, changes, message):
    if "flags" in changes:
        host = json.loads((folder / "manifest.json").read_text())["host"]
        changes = {"host": {**host, **changes}}
    reseal(folder, **changes)
    with pytest.raises(MachineError, match=message):
        ExportedStep(folder)


def test_a_device_of_another_kind(folder):
    with pytest.raises(MachineError, match="the export is for llvm, not for cuda"):
        ExportedStep(folder, tvm.device("cuda"))


@pytest.mark.parametrize(
    "arch, capability, runs",
    [
        ("sm_80", "8.0", True),
        ("sm_80", "9.0", True),
        ("sm_90", "8.0", False),
        ("sm_90a", "9.0", True),
        ("sm_90a", "10.0", False),
        ("sm_100", "9.0", False),
        ("sm_100f", "10.3", True),
        ("sm_100f", "12.0", False),
    ],
)
def test_architectures(arch, capability, runs):
    if runs:
        machine_module._check_arch(arch, capability)
    else:
        with pytest.raises(MachineError, match=f"exported for {arch}"):
            machine_module._check_arch(arch, capability)


def test_all_errors_have_one_base():
    for error in (FolderError, MachineError, InputError, StateError):
        assert issubclass(error, ExportedStepError)
