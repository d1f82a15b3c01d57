"""Exports that are damaged or not whole, rewritten, or reach out of their folder."""

import hashlib
import json
import os
import re
import subprocess

import pytest

from graphgrad.runtime import ExportedStep, ExportedStepError, FolderError
from tests.exports import reseal
from tests.runtime.data import rows


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
    reseal(folder, format="graphgrad-export-4")
    with pytest.raises(FolderError, match="no export in the format graphgrad-export-3"):
        ExportedStep(folder)


def test_the_first_format(folder):
    """It did not say in which order parameters are stored: as the model has them."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("storage") == {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    reseal(folder, format="graphgrad-export-1")
    assert ExportedStep(folder).steps == 2


@pytest.mark.parametrize("folder", [5, None, b"export", "a\0b"], ids=repr)
def test_what_is_no_path(folder):
    with pytest.raises(FolderError, match=f"{re.escape(repr(folder))} is no path of a folder"):
        ExportedStep(folder)


@pytest.fixture
def outside(folder, tmp_path):
    """A library outside of the export, whose code says that it was loaded."""
    source, library = tmp_path / "outside.c", tmp_path / "outside.so"
    source.write_text(
        f"""#include <stdio.h>
        __attribute__((constructor)) static void run(void) {{
            FILE* file = fopen("{tmp_path}/ran", "w"); if (file) fclose(file);
        }}""",
        encoding="utf-8",
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    yield library
    assert not (tmp_path / "ran").exists()


def changed(folder, change):
    """Let a change be made to the manifest, which is sealed again."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    reseal(folder)


@pytest.mark.parametrize("in_digests", [True, False])
@pytest.mark.parametrize("name", ["{outside}", "../outside.so", "x/../../outside.so", "./../o.so"])
def test_a_library_outside_is_not_loaded(folder, outside, name, in_digests):
    name = name.format(outside=outside)

    def change(manifest):
        manifest["entries"][0]["library"] = name
        if in_digests:
            manifest["files"][name] = hashlib.sha256(outside.read_bytes()).hexdigest()

    changed(folder, change)
    with pytest.raises(FolderError, match=r"is outside of the folder|none of the files"):
        ExportedStep(folder)


@pytest.mark.parametrize("name", ["step-0.so", "link.so", "exported_step/step.py"])
def test_a_link_out_of_the_folder_is_not_followed(folder, outside, name):
    """Even where the digest fits."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)

    def change(manifest):
        manifest["files"][name] = hashlib.sha256(outside.read_bytes()).hexdigest()
        manifest["sizes"][name] = outside.stat().st_size
        if name.endswith(".so"):
            manifest["entries"][0]["library"] = name

    changed(folder, change)
    with pytest.raises(FolderError, match="is a link out of the export"):
        ExportedStep(folder)


def test_a_loss_scale_without_its_count(folder):
    changed(folder, lambda manifest: manifest.update(loss_scale={"scale": 2.0}))
    with pytest.raises(FolderError, match="good_steps"):
        ExportedStep(folder)


def test_a_folder_that_is_a_link(folder, tmp_path):
    """What is inside is inside, however one comes there; so is a link to a file of the export."""
    (tmp_path / "link").symlink_to(folder)
    library = folder / "step-0.so"
    library.rename(folder / "real.so")
    library.symlink_to("real.so")
    assert ExportedStep(tmp_path / "link").steps == 2


def test_a_pipe_is_not_waited_for(folder):
    for name in ("step-0.so", "manifest.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(FolderError, match=f"{name} is damaged: it is no file"):
            ExportedStep(folder)


def test_an_export_without_sizes(folder):
    """They came after the second format."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("sizes")["step-0.so"] == (folder / "step-0.so").stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    reseal(folder)
    assert ExportedStep(folder).steps == 2


def test_a_file_of_another_size_is_not_read(folder):
    os.truncate(folder / "step-0.so", 1 << 40)  # takes no space, but would take an hour to read
    with pytest.raises(FolderError, match=r"step-0\.so is damaged"):
        ExportedStep(folder)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.pop("entries"), "entries is missing"),
        (lambda m: m["entries"].clear(), "it has no entries"),
        (lambda m: m["entries"][0].pop("seeded"), r"entries\[0\].seeded is missing"),
        (lambda m: m["entries"][1]["inputs"][0].update(name="y"), "other ones than the first"),
        (lambda m: [e["inputs"].append(e["inputs"][0]) for e in m["entries"]], "input twice"),
        (lambda m: m["entries"][0]["inputs"][0].update(shape=[-1, 4]), r"shape is \[-1, 4\]"),
        (lambda m: m["entries"][0]["inputs"][0].update(dtype="O"), "dtype is 'O'"),
        (lambda m: m["entries"][0]["targets"].update(range=[1]), r"range is \[1\]"),
        (lambda m: m["entries"][0]["functions"].pop("step"), "functions.step is missing"),
        (lambda m: m["entries"][0]["functions"].update(step="no"), "has no function 'no'"),
        (lambda m: m["entries"][0]["functions"].update(end_of_window="step"), "micro-batches"),
        (lambda m: m.update(accumulate=0), "no micro-batches"),
        (lambda m: m["target"].update(kind="cuda"), "the arch of its target is None"),
        (lambda m: m["target"].update(kind="cuda", arch=""), "the arch of its target is ''"),
        (lambda m: m.update(host={}), "host.system is missing"),
        (lambda m: m.update(tvm=None), "tvm is None"),
        (lambda m: m.update(files=["step-0.so"]), "files is"),
        (lambda m: m["trained"].append("none"), r"no parameters \['none'\]"),
        (lambda m: m["trained"].append(m["trained"][0]), "stands for two tensors"),
        (lambda m: m["params"].append(m["params"][0]), "stands for two tensors"),
        (lambda m: m["slots"].append({"name": "params", "fill": 0}), "no names of their own"),
        (lambda m: m["storage"].update({m["trained"][0]: [0, 0]}), "no order of the axes"),
    ],
)
def test_a_manifest_that_makes_no_sense(folder, change, message):
    """Its digest fits: somebody has written it so."""
    changed(folder, change)
    with pytest.raises(FolderError, match=message):
        ExportedStep(folder)


RESULTS = ([[], "float32"], [[], "float64"])
OVERWRITTEN = tuple(range(3, 15))
"""As many as a step of `compiled` returns behind its loss and the count of updates."""


def recorded(
    kind="cuda", role="step", positions=(0, 1), tensor=(64, [4], "float32"), results=RESULTS,
    overwritten=OVERWRITTEN,
):  # fmt: skip
    """Return a change after which a manifest has facts of a function that is recorded."""

    def change(manifest):
        returned = {"positions": positions, "results": results, "overwritten": overwritten}
        workspace = {"bytes": 80, "tensors": [tensor]}
        manifest["target"].update(kind=kind, arch="sm_90")
        manifest["entries"][0]["recorded"] = {role: {"workspace": workspace, "returned": returned}}

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (recorded(), "TVM|no device|machine"),  # all is well but the machine
        (recorded(kind="llvm"), "has 'step', which cannot be recorded"),
        (recorded(role="evaluate"), "has 'evaluate', which cannot be recorded"),
        (recorded(role="end_of_window"), "has 'end_of_window', which cannot be recorded"),
        (recorded(tensor=(65, [4], "float32")), "a tensor outside of its workspace"),
        (recorded(tensor=(1, [4], "float32")), "not aligned in it"),
        (recorded(tensor=(64, [-4], "float32")), "recorded is"),
        (recorded(tensor=(64, [4])), "recorded is"),
        (recorded(positions=(0,)), r"returns 2 results, as \[0\]"),
        (recorded(positions=(1, 0)), r"returns 2 results, as \[1, 0\]"),
        (recorded(positions=(1, 2)), "step returns no loss"),
        (recorded(positions=(0, 99)), "as result 99"),
        (recorded(positions=(0, 2)), r"returns \[\[\], 'float64'\] as result 2"),
        (recorded(results=([[2], "float32"], RESULTS[1])), r"returns \[\[2\], 'float32'\]"),
        (
            recorded(results=([[], "float16"], RESULTS[1])),
            r"returns \[\[\], 'float16'\] as result 0",
        ),
        (recorded(results=(RESULTS[0], RESULTS[0])), r"returns \[\[\], 'float32'\] as result 1"),
        (recorded(overwritten=()), "neither returns nor overwrites some"),
        (recorded(overwritten=(*OVERWRITTEN, 15)), "neither returns nor overwrites some"),
        (recorded(overwritten=OVERWRITTEN[:1] * 12), "neither returns nor overwrites some"),
    ],
)
def test_what_is_said_of_graphs_makes_no_sense(folder, change, message):
    changed(folder, change)
    with pytest.raises(ExportedStepError, match=message):
        ExportedStep(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "1" * 5000, "nonsense"])
def test_a_manifest_that_is_no_object(folder, text):
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(FolderError):
        ExportedStep(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["entries"][0].update(seeded=True),
        lambda m: m["params"].reverse(),
        lambda m: m["entries"][0]["targets"].update(dtype="float32"),
        lambda m: m["storage"].update({m["trained"][-1]: [0], m["trained"][0]: [1, 0]}),
    ],
    ids=["arguments", "order", "dtype", "storage"],
)
def test_a_library_that_takes_something_else(folder, change):
    changed(folder, change)
    step = ExportedStep(folder)
    with pytest.raises(FolderError, match="does not take what the manifest says"):
        step(*rows(3))
    assert step.steps == 2


def test_outputs_that_the_library_has_not(folder):
    changed(folder, lambda m: m["outputs"].append("more"))
    with pytest.raises(FolderError, match="names 2 of 1 outputs"):
        ExportedStep(folder).evaluate(rows(3)[0])
