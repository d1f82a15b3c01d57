"""Writing exports; what a loaded one does is tested in `tests/runtime`."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.support import cc
from tvm_ffi import structural_map

import graphgrad as gg
from graphgrad.errors import ArgumentError, ExportError, InputError
from graphgrad.runtime import ExportedStep, files
from graphgrad.runtime.files import replace_file
from graphgrad.train import export as module
from graphgrad.train.forward import FORWARD
from graphgrad.tvm_fixes.hooks import set_type
from tests import derived_nets
from tests.exports import run_alone
from tests.frontend.graphs import random
from tests.train.nets import module as net
from tests.train.nets import perceptron

SHAPES = {"input": (2, 4)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An export of a perceptron."""
    folder = tmp_path_factory.mktemp("made") / "export"
    gg.export_step(perceptron(), folder, shapes=SHAPES)
    return folder


@pytest.fixture
def export(made, tmp_path):
    """A copy of the export, alone in its folder."""
    return shutil.copytree(made, tmp_path / "export")


@pytest.fixture
def quick(monkeypatch):
    """Stand in for compilation, where a test is about the folder alone."""

    def write_library(folder, name, made, shapes):
        (folder / name).write_bytes(b"library")
        return {"library": name, "shapes": {key: list(value) for key, value in shapes.items()}}

    monkeypatch.setattr(module, "_write_library", write_library)


WRITERS = {
    "file": lambda path: replace_file(path, b"state"),
    "export": lambda path: gg.export_step(perceptron(), path, shapes=SHAPES),
}
"""What writes beside a path first, and renames then."""


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def files_of(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def content(folder):
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def test_the_manifest_names_all_files_with_their_digests(made):
    files = manifest_of(made)["files"]
    assert {*files, "manifest.json"} == files_of(made)
    assert {"step-0.so", "state.safetensors", "exported_step/__init__.py"} <= files.keys()
    for name, digest in files.items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest


def test_the_manifest_says_what_the_library_takes(made):
    manifest = manifest_of(made)
    [entry] = manifest["entries"]
    assert entry["inputs"] == [{"name": "input", "dtype": "float32", "shape": [2, 4]}]
    assert entry["targets"]["shape"] == [2] and entry["targets"]["range"] == [0, 2]
    assert manifest["trained"] == [ty["name"] for ty in manifest["params"]]
    assert manifest["slots"] == [{"name": "momentum", "fill": 0.0}]
    assert manifest["target"]["mcpu"] == manifest["host"]["processor"]


def test_the_loader_imports_nothing_of_graphgrad(made):
    loader = made / "exported_step"
    files = list(loader.rglob("*.py"))
    assert loader / "cudnn" / "engine.py" in files
    for file in files:
        # As many dots as lead out of the package, from wherever in it the file is.
        dots = len(file.relative_to(loader).parents) + 1
        pattern = rf"^\s*(from|import) (graphgrad|\.{{{dots}}})"
        found = re.search(pattern, file.read_text(), re.MULTILINE)
        assert found is None, (file, found)


def test_shapes_that_the_step_has_seen(tmp_path, quick):
    step = gg.train_step(perceptron())
    step(random(3, 4), np.arange(3))
    step.evaluate(random(5, 4))
    step.export(tmp_path / "export")
    shapes = [entry["shapes"] for entry in manifest_of(tmp_path / "export")["entries"]]
    assert shapes == [{"input": [3, 4]}, {"input": [5, 4]}]


def test_a_parameter_that_was_replaced_by_another(tmp_path):
    model = perceptron()
    model.params["fc1.bias"] = np.zeros(2, "float32")
    with pytest.raises(InputError, match=r"'fc1.bias': expected shape"):
        gg.export_step(model, tmp_path / "export", shapes=SHAPES)


def test_static_shapes_of_the_model(tmp_path, quick):
    gg.export_step(perceptron(batch=7), tmp_path / "export")
    [entry] = manifest_of(tmp_path / "export")["entries"]
    assert entry["shapes"] == {"input": [7, 4]}


@pytest.mark.parametrize(
    "shapes, message",
    [
        (None, "nothing says for which input shapes"),
        ([], "nothing says for which input shapes"),
        ({"x": (2, 4)}, r"for the inputs \['input'\]"),
        ([SHAPES, (2, 4)], r"for the inputs \['input'\]"),
        (4, r"shapes=4: give \{name: shape\} for the inputs \['input'\], or a list of those"),
        ((4, 8), r"shapes=\(4, 8\): give \{name: shape\}"),
        ("input", r"shapes='input': give \{name: shape\}"),
        ({"input": (2, 5)}, r"shapes: input 'input': expected shape \(N, 4\)"),
        ({"input": 4}, "a shape is a tuple of whole numbers"),
        ({"input": (2.0, 4)}, "a shape is a tuple of whole numbers"),
        ({"input": (0, 4)}, "shapes: input 'input': shape .* is empty"),
        ({"input": (-2, 4)}, "an extent is negative"),
    ],
    ids=[
        "none", "empty", "name", "tuple", "extent", "extents", "text", "misfit", "number",
        "fraction", "no example", "negative",
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(tmp_path, shapes, message):
    with pytest.raises(ArgumentError, match=message):
        gg.export_step(perceptron(), tmp_path / "export", shapes=shapes)
    assert not list(tmp_path.iterdir())


def test_an_export_is_replaced(export, quick):
    shapes = [SHAPES, {"input": (3, 4)}, SHAPES]
    gg.export_step(perceptron(), export, shapes=shapes, weights=False)
    assert {"step-0.so", "step-1.so"} <= files_of(export)
    assert "step-2.so" not in files_of(export)
    assert "state.safetensors" not in files_of(export)
    assert list(export.parent.iterdir()) == [export]


def test_an_empty_folder_is_taken(tmp_path, quick):
    (tmp_path / "export").mkdir()
    gg.export_step(perceptron(), tmp_path / "export", shapes=SHAPES)
    assert "manifest.json" in files_of(tmp_path / "export")


@pytest.mark.parametrize("kind", ["folder", "file", "addition", "damaged", "no parent"])
def test_what_is_no_export_is_left_alone(export, quick, kind):
    path = export
    if kind == "folder":
        path = export.parent
    elif kind == "file":
        path = export / "manifest.json"
    elif kind == "addition":
        (export / "notes.txt").write_text("mine")
    elif kind == "damaged":
        (export / "manifest.json").write_text("{}")
    else:
        path = export / "missing" / "export"
    before = content(export.parent)
    with pytest.raises(ExportError):
        gg.export_step(perceptron(), path, shapes=SHAPES)
    assert content(export.parent) == before


@pytest.mark.parametrize("path", [5, None, b"export"], ids=repr)
def test_what_is_no_path(quick, path):
    with pytest.raises(ExportError, match="is no path of a folder"):
        gg.export_step(perceptron(), path, shapes=SHAPES)


@pytest.mark.parametrize(
    "failure, raised",
    [(OSError(28, "No space left on device"), ExportError), (KeyboardInterrupt(), None)],
    ids=["disk", "interrupt"],
)
@pytest.mark.parametrize("place", ["write_manifest", "fsync", "exchange", "rename"])
def test_a_failure_leaves_what_was_there(export, quick, monkeypatch, failure, raised, place):
    real = os.rename

    def fail(*paths):
        if place == "rename" and not paths[0].name.endswith("unfinished"):
            return real(*paths)  # the old folder is moved away and back
        raise failure

    if place == "rename":  # of a file system that exchanges no names
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    owner = {"write_manifest": module, "exchange": files}.get(place, os)
    monkeypatch.setattr(owner, "_exchange" if place == "exchange" else place, fail)
    before = content(export)
    with pytest.raises(raised or type(failure)) as said:
        gg.export_step(perceptron(), export, shapes=SHAPES)
    assert raised is None or f"bytes are free in {export.parent}" in str(said.value)
    assert content(export) == before
    assert list(export.parent.iterdir()) == [export]


def test_what_a_killed_process_left_is_undone(export, quick):
    os.rename(export, export.parent / ".export.replaced")
    (export.parent / ".export.0123.export-unfinished").mkdir()
    gg.export_step(perceptron(), export, shapes=SHAPES)
    assert list(export.parent.iterdir()) == [export]


@pytest.mark.parametrize("first", ["file", "export"])
def test_what_a_killed_save_or_export_of_one_name_left(tmp_path, quick, monkeypatch, first):
    """Neither is taken for the other's."""
    path = tmp_path / "it"
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_, **__: None)
        killed.setattr(shutil, "rmtree", lambda *_, **__: None)
        killed.setattr(os, "replace" if first == "file" else "rename", Mock(side_effect=OSError))
        with pytest.raises(OSError if first == "file" else ExportError):
            WRITERS[first](path)
    [left] = tmp_path.iterdir()
    [second] = WRITERS.keys() - {first}
    WRITERS[second](path)
    assert sorted(tmp_path.iterdir()) == sorted([left, path])


def test_a_link_keeps_pointing_at_the_folder(export, quick, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(export)
    gg.export_step(perceptron(), link, shapes=SHAPES, weights=False)
    assert link.is_symlink() and "state.safetensors" not in files_of(export)


def test_no_c_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with pytest.raises(ExportError, match="no C compiler"):
        gg.export_step(perceptron(), tmp_path / "export", shapes=SHAPES)


def test_a_c_compiler_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ExportError, match="false cannot link"):
        gg.export_step(perceptron(), tmp_path / "export", shapes=SHAPES)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc to compile CUDA source")
def test_cuda_without_a_gpu(tmp_path):
    """The library asks for machine code by the digest of its source, and there it is."""
    target = {"kind": "cuda", "arch": "sm_90"}
    gg.export_step(perceptron(), tmp_path / "export", target=target, shapes=SHAPES)
    manifest = manifest_of(tmp_path / "export")
    assert manifest["target"]["arch"] == "sm_90" and not manifest["host"]["flags"]
    assert manifest["ptx"]
    [kernels] = [name for name in manifest["files"] if name.startswith("kernels/")]
    library = (tmp_path / "export" / "step-0.so").read_bytes()
    start = library.index(b"#") if b"#" in library else 0
    assert b"__global__" in library[start:], "the library holds source"
    assert (tmp_path / "export" / kernels).read_bytes()[:4] == b"\x50\xed\x55\xba", "a fat binary"


DERIVED = {
    "tensor expression": (derived_nets.te_op, (derived_nets.FEATURES,)),
    "loop": (derived_nets.scan, (derived_nets.TIMES, derived_nets.FEATURES)),
}


def calling_kernels(*names):
    """A model that multiplies by a weight and calls kernels of these names, which multiply by 2."""

    def build(builder, x, w):
        x = builder.emit(relax.op.multiply(x, w))
        for name in names:
            x = builder.emit_te(double, x, primfunc_name_hint=name)
        return x

    def double(x):
        return te.compute(x.shape, lambda *index: x[index] * 2.0, "double")

    mod = net(build, x=([2, 3], "float32"), w=([3], "float32"))
    return gg.Model(mod, {"w": np.ones(3, "float32")})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_kernels_of_any_name(tmp_path, accumulate):
    """The functions that steps are made of, and what is exported, have names of their own."""
    model = calling_kernels("forward", "forward_vjp", "train_step", "micro_batch", "evaluate")
    x, y = random(2, 3), np.array([0, 2])
    step = gg.train_step(model, optimizer=gg.optim.SGD(0.1), accumulate=accumulate)
    gg.export_step(model, tmp_path / "e", optimizer=gg.optim.SGD(0.1), accumulate=accumulate)
    exported = ExportedStep(tmp_path / "e")
    for _ in range(accumulate):
        assert float(step(x, y)) == float(exported(x, y))
    np.testing.assert_array_equal(exported.params["w"], step.params["w"])
    assert (step.params["w"] != 1).any()
    (output,) = step.evaluate(x).values()
    np.testing.assert_allclose(output, 32 * x * step.params["w"], rtol=1e-6)
    np.testing.assert_array_equal(next(iter(exported.evaluate(x).values())), output)


def test_kernels_that_the_step_and_the_evaluation_have_each(tmp_path):
    """Mixed precision makes loops of its own of both forms, under the same names."""
    settings = {"optimizer": gg.optim.SGD(0.1), "precision": "bfloat16"}
    model = gg.from_onnx(derived_nets.lstm())
    step = gg.train_step(model, **settings)
    shape = (4, derived_nets.TIMES, derived_nets.FEATURES)
    gg.export_step(model, tmp_path / "e", shapes={"input": shape}, **settings)
    exported, x, y = ExportedStep(tmp_path / "e"), random(*shape), np.arange(4)
    for name, expected in gg.train_step(model).evaluate(x).items():
        bound = 0.1 * np.abs(expected).max()
        np.testing.assert_allclose(exported.evaluate(x)[name], expected, atol=bound)
    assert float(step(x, y)) == float(exported(x, y))
    for name, expected in step.evaluate(x).items():
        np.testing.assert_array_equal(exported.evaluate(x)[name], expected)


def test_a_kernel_named_like_a_function_of_ours():
    model = calling_kernels("kernel")
    (old,) = (each for each in model.mod.functions if each.name_hint == "kernel")
    new = tvm.ir.GlobalVar(FORWARD)
    set_type(new, old.ty)
    main = structural_map(model.mod["main"], (tvm.ir.GlobalVar, {old: new}.get))
    model.mod = tvm.IRModule({"main": main, new: model.mod[old]})
    with pytest.raises(ArgumentError, match=r"has a function 'graphgrad\.forward' already"):
        gg.train_step(model)(random(2, 3), np.array([0, 2]))


@pytest.mark.parametrize("name", DERIVED)
def test_derived_kernels_alone(tmp_path, name):
    """With TVM's runtime alone, no graphgrad, derived gradients go on as in the process."""
    build, shape = DERIVED[name]
    model = gg.from_onnx(build(), custom_ops=derived_nets.CUSTOM_OPS)
    assert "derived" in {row.provenance for row in gg.coverage(model).rows}
    step = gg.train_step(model, optimizer=gg.optim.SGD(0.1, momentum=0.9))
    given = [(random(4, *shape, seed=seed), (np.arange(4) + seed) % 10) for seed in range(4)]
    first = float(step(*given[0]))
    step.export(tmp_path / "export")
    losses, outputs = run_alone(tmp_path / "export", given[1:], tmp_path / "results")
    assert losses == [float(step(*each)) for each in given[1:]]
    assert len({first, *losses}) == 4
    for key, expected in step.evaluate(given[1][0]).items():
        assert outputs[key].tobytes() == expected.tobytes()


def test_the_documented_example(tmp_path):
    """One process exports; another, with TVM's runtime alone, goes on."""
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    writing, running = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    alone = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    said = ""
    for program, environment in [(writing, os.environ), (running, alone)]:
        (tmp_path / "example.py").write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = done.stdout
    assert said.startswith("8 0 "), said
