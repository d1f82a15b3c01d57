import json
import os
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import graphgrad as gg
from graphgrad.errors import ArgumentError, CheckpointError
from graphgrad.runtime import ExportedStep, StateError, state_file
from graphgrad.runtime.files import replace_file
from graphgrad.runtime.progress import read_for
from graphgrad.train.checkpoint import read, write
from tests.frontend.graphs import random
from tests.train.nets import perceptron

GROUPS = {
    "params": {
        "a/b.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "scalar": np.array(2.5),
    },
    "momentum": {"half": np.arange(3, dtype=ml_dtypes.bfloat16), "none": np.zeros((0, 2), "int64")},
}
FACTS = {"steps": 3, "rate": 0.1, "extra": {"epoch": [1, None, "é"]}}


@pytest.fixture
def saved(tmp_path) -> Path:
    write(tmp_path / "c.safetensors", GROUPS, FACTS)
    return tmp_path / "c.safetensors"


def assert_same(groups, expected=GROUPS):
    assert groups.keys() == expected.keys()
    for group, members in expected.items():
        assert groups[group].keys() == members.keys()
        for name, array in members.items():
            given = groups[group][name]
            assert (given.dtype, given.shape) == (array.dtype, array.shape)
            assert given.tobytes() == array.tobytes()


def test_round_trip(saved):
    groups, facts = read(saved)
    assert_same(groups)
    assert facts == FACTS


def test_arrays_among_the_extra_facts(tmp_path):
    losses = np.array([1.0, np.nan])
    write(tmp_path / "c", GROUPS, {"steps": 2, "extra": {"loss": losses, "name": "a"}})
    groups, facts = read(tmp_path / "c")
    assert_same(groups)
    assert facts["extra"].keys() == {"loss", "name"} and facts["extra"]["name"] == "a"
    np.testing.assert_array_equal(facts["extra"]["loss"], losses)


def test_facts_that_no_file_takes_are_refused(saved):
    before = saved.read_bytes()
    with pytest.raises(ArgumentError, match="bytes as JSON, too many for a file"):
        write(saved, GROUPS, {"extra": {"long": "x" * 100_000_000}})
    with pytest.raises(ArgumentError, match="JSON cannot hold"):
        write(saved, GROUPS, {"extra": {"objects": np.array([None])}})
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    "layout", [np.asfortranarray, lambda a: a[::-1][::-1], lambda a: a.T.copy().T]
)
def test_arrays_of_any_layout(tmp_path, layout):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write(tmp_path / "c", {"params": {"w": layout(array)}}, {})
    assert_same(read(tmp_path / "c")[0], {"params": {"w": array}})


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, -9, -1])
def test_truncated(saved, kept):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(CheckpointError, match="damaged"):
        read(saved)


def test_any_changed_byte_is_noticed(saved):
    data = saved.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x11
        saved.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read(saved)


def test_foreign_files(tmp_path, saved):
    save_file({"w": np.zeros(3)}, tmp_path / "other")
    (tmp_path / "text").write_text("not a checkpoint")
    for name, message in [
        ("other", "no checkpoint of graphgrad"),
        ("text", "no checkpoint"),
        ("missing", "there is no file"),
        (".", "there is no file"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize(
    "facts, message",
    [
        ("", "its facts are no JSON"),
        ("[" * 100_000, "its facts are no JSON"),
        ("1" * 5000, "its facts are no JSON"),
        ("[]", "holds facts that no step has written"),
        ('{"extra": null}', "holds facts that no step has written"),
    ],
)
def test_facts_in_another_form(tmp_path, facts, message):
    """The digest fits: somebody has written them so."""
    arrays = {"params/w": np.zeros(3)}
    metadata = {"format": state_file.FORMAT, "facts": facts}
    metadata["sha256"] = state_file._digest(arrays, facts)
    save_file(arrays, tmp_path / "c", metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "c")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "c")
    with pytest.raises(CheckpointError, match="there is no file"):
        read(tmp_path / "c")
    assert not state_file.is_state_file(tmp_path / "c")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda g: g["params"].pop("scalar"), "params/scalar: file has nothing"),
        (lambda g: g["params"].update(more=np.zeros(2)), "model has nothing"),
        (lambda g: g["params"].update(scalar=np.zeros(1)), r"float64\[1\], model has float64\[\]"),
        (lambda g: g["params"].update(scalar=np.zeros((), "int8")), "file has int8"),
        (lambda g: g.pop("momentum"), r"2 difference\(s\)"),
    ],
    ids=["missing", "superfluous", "shape", "dtype", "group"],
)
def test_mismatch(tmp_path, change, message):
    facts = {"optimizer": "SGD()", "learning_rate": 0.1, "steps": 3, "skipped": 1, "seed": 0}
    groups = {group: dict(members) for group, members in GROUPS.items()}
    change(groups)
    for name, written in (("same", GROUPS), ("changed", groups)):
        write(tmp_path / name, written, facts)
    taken, progress = read_for(tmp_path / "same", lambda _: GROUPS, "SGD()", 1, ["float32"])
    assert_same(taken)
    assert (progress.accumulated, progress.updates, progress.extra) == (0, 2, {})
    with pytest.raises(StateError, match=message):
        read_for(tmp_path / "changed", lambda _: GROUPS, "SGD()", 1, ["float32"])
    with pytest.raises(StateError, match=r"saved by SGD\(\), this step uses Adam\(\)"):
        read_for(tmp_path / "same", lambda _: GROUPS, "Adam()", 1, ["float32"])


STEP_OPTIONS = {"optimizer": gg.optim.SGD(0.1, momentum=0.9), "accumulate": 3, "seed": 5}

FALSE_FACTS = [
    ("learning_rate", -1, "learning_rate=-1 must be a finite number"),
    ("learning_rate", float("inf"), "learning_rate=inf must be a finite number"),
    ("learning_rate", float("nan"), "learning_rate=nan must be a finite number"),
    ("learning_rate", 10**400, "must be a finite number"),
    ("learning_rate", 1e39, "too large for float32 parameters"),
    ("learning_rate", "0.1", "learning_rate='0.1' must be a finite number"),
    ("learning_rate", None, "learning_rate=None must be a finite number"),
    ("steps", -1, "steps=-1 must be a whole number"),
    ("steps", 2.5, "steps=2.5 must be a whole number"),
    ("steps", True, "steps=True must be a whole number"),
    ("steps", 10**400, "must be a whole number"),
    ("skipped", 3, "skipped=3 must be a whole number from 0 to 2"),
    ("skipped", None, "skipped=None must be a whole number"),
    ("seed", 1 << 31, "seed=2147483648 must be a whole number"),
    ("seed", [1], r"seed=\[1\] must be a whole number"),
    ("accumulated", 3, "accumulated=3 is no position in a window of 3"),
    ("accumulated", "1", "accumulated='1' must be a whole number"),
    ("accumulate", 4, "saved behind 1 of 4 micro-batches"),
    ("optimizer", 7, "saved by 7"),
    ("extra", [1], r"extra is \[1\]"),
]


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """A step in an open window, its file, and an export of it."""
    folder = tmp_path_factory.mktemp("stepped")
    step = gg.train_step(perceptron(), **STEP_OPTIONS)
    for seed in range(7):
        step(random(4, 4, seed=seed), np.arange(4) % 3)
    step.save(folder / "state")
    step.export(folder / "export")
    return step, ExportedStep(folder / "export"), folder / "state"


@pytest.mark.parametrize(
    "name, value, message",
    FALSE_FACTS,
    ids=[f"{name}={value!r:.12}" for name, value, _ in FALSE_FACTS],
)
def test_a_file_that_is_refused_changes_nothing(
    stepped, tmp_path, monkeypatch, name, value, message
):
    """Neither arrays nor counters nor the rate, in a step and in an exported one."""
    # It would refuse some of the facts before they are written.
    monkeypatch.setattr(state_file, "_split_extra", lambda groups, facts: (groups, facts))
    *steps, state = stepped
    groups, facts = read(state)
    groups = {group: {k: a + 1 for k, a in members.items()} for group, members in groups.items()}
    write(tmp_path / "changed", groups, {**facts, name: value})
    for step, error in zip(steps, (CheckpointError, StateError), strict=True):
        step.save(tmp_path / "before")
        with pytest.raises(error, match=message):
            step.load(tmp_path / "changed")
        step.save(tmp_path / "after")
        (groups_before, facts_before), (groups_after, facts_after) = (
            read(tmp_path / moment) for moment in ("before", "after")
        )
        assert_same(groups_after, groups_before)
        assert facts_after == facts_before
    write(tmp_path / "good", groups, facts)
    for step in steps:
        step.load(tmp_path / "good")
        assert step.accumulated == 1
        np.testing.assert_array_equal(step.params["fc1.bias"], groups["params"]["fc1.bias"])
        step.load(state)


@pytest.mark.parametrize("name", ["learning_rate", "steps", "skipped", "seed", "optimizer"])
def test_a_fact_that_is_missing(stepped, tmp_path, name):
    step, exported, state = stepped
    groups, facts = read(state)
    del facts[name]
    write(tmp_path / "changed", groups, facts)
    with pytest.raises(CheckpointError, match=f"{name}=None|saved by None"):
        step.load(tmp_path / "changed")
    with pytest.raises(StateError):
        exported.load(tmp_path / "changed")


@pytest.mark.parametrize("facts", [{"x": np.float32(1)}, {"x": {1, 2}}, {"x": print}])
def test_facts_that_json_cannot_hold(saved, facts):
    with pytest.raises(ArgumentError, match="JSON cannot hold"):
        write(saved, GROUPS, facts)
    assert_same(read(saved)[0])


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(saved, monkeypatch, failing):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(CheckpointError, match="No space left"):
        write(saved, {"params": {}}, {})
    assert_same(read(saved)[0])
    assert list(saved.parent.iterdir()) == [saved]


def test_a_full_disk_leaves_the_old_file(saved):
    """The kernel itself refuses to let a file grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(CheckpointError, match="untouched"):
            write(saved, {"params": {"w": np.zeros(10_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(read(saved)[0])
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize("path", ["missing/c", "file/c", "folder"])
def test_unusable_paths(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        write(tmp_path / path, GROUPS, FACTS)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def test_permissions_and_links_are_kept(tmp_path):
    target, link, new = tmp_path / "target", tmp_path / "link", tmp_path / "new"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    replace_file(link, b"content")
    assert link.is_symlink() and target.read_bytes() == b"content"
    assert target.stat().st_mode & 0o777 == 0o640
    mask = os.umask(0o027)
    try:
        replace_file(new, b"content")
    finally:
        os.umask(mask)
    assert new.stat().st_mode & 0o777 == 0o640


SAVER = """
import os, random, signal, sys, time
import numpy as np
from graphgrad.train.checkpoint import read, write

path, count = sys.argv[1], 0
write(path, {"params": {"w": np.zeros(300_000)}}, {"count": 0})
for _ in range(12):
    saved, tell = os.pipe()
    child = os.fork()
    while child == 0:
        count += 1
        write(path, {"params": {"w": np.full(300_000, count)}}, {"count": count})
        os.write(tell, b"!")
    os.close(tell)
    assert os.read(saved, 1), "the child ended before its first save"
    time.sleep(random.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    groups, facts = read(path)
    os.close(saved)
    assert facts["count"] > count and (groups["params"]["w"] == facts["count"]).all()
    assert len(os.listdir(os.path.dirname(path))) <= 2, "unfinished files pile up"
    count = facts["count"]
write(path, {"params": {"w": np.zeros(3)}}, {})
"""


def test_kill_during_save_leaves_a_whole_file(tmp_path, python):
    """A process that saves without pause is killed at random moments, again and again."""
    path = tmp_path / "c.safetensors"
    done = python.run(SAVER, path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [path]  # the last save removed what was left behind


def test_files_are_plain_safetensors(saved):
    length = int.from_bytes(saved.read_bytes()[:8], "little")
    header = json.loads(saved.read_bytes()[8 : 8 + length])
    assert header["__metadata__"]["format"] == "graphgrad-checkpoint-1"
    assert "params/a/b.weight" in header
