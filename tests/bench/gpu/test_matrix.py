"""The compile matrix: what it finds in an executable, what it says, and that it goes on."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import cell
import fatbin
import matrix
import matrix_page
import numpy as np
import onnx
import pytest
from families import derived_families, families, in_half

import graphgrad as gg


@pytest.fixture
def forked(monkeypatch):
    """Let the matrix fork its processes, which import nothing again."""
    pool = partial(ProcessPoolExecutor, 1, mp_context=get_context("fork"))
    monkeypatch.setattr(matrix, "_pool", pool)


def compiled(family="mlp", form="training", arch="sm_90", **fields):
    made = cell.Cell(family, form, "float32", arch, kernels=3, calls=5, functions=4)
    made.rules, made.seconds = {"tiles": 1, "elements": 2}, dict.fromkeys(cell.PARTS, 1.0)
    vars(made).update(fields)
    return made


def dies_on_vit(key, batch):
    if key[0] == "vit":
        os._exit(1)
    return cell.Cell(*key)


def test_what_fails_is_listed_and_the_others_go_on(forked, monkeypatch, capsys, tmp_path):
    """No compiler is needed to refuse an architecture."""
    written = tmp_path / "matrix.json"
    only = ["--match", "^(mlp|lenet)$", "--form", "inference", "--dtype", "float32"]
    arguments = [*only, "--arch", "sm_1", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["matrix.py", *arguments])
    assert matrix.main() == 1
    cells = json.loads(written.read_text())["cells"]
    assert [(c["family"], c["status"]) for c in cells] == [("mlp", "failed"), ("lenet", "failed")]
    assert "sm_1" in cells[0]["reason"]
    assert "0 of 2 compiled" in capsys.readouterr().out
    assert matrix._known(written) == {}


def test_a_program_is_compiled_and_weighed(tmp_path, python):
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc on the PATH: nothing here compiles CUDA source")
    written = tmp_path / "matrix.json"
    only = ["--match", "^mlp$", "--form", "inference", "--dtype", "float16", "--arch", "sm_80"]
    done = python.run(Path(matrix.__file__), *only, "--json", written)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 compiled" in done.stdout
    (found,) = matrix._known(written).values()
    assert found.status == "compiled"
    assert found.host == []
    assert found.calls == found.kernels == sum(found.rules.values())
    assert found.functions >= found.kernels
    assert min(found.source_bytes, found.code_bytes, found.registers) > 0
    assert set(found.seconds) == set(cell.PARTS)


def test_a_process_that_dies_costs_one_cell(forked, monkeypatch):
    monkeypatch.setattr(matrix, "_make_one", dies_on_vit)
    keys = [(name, "training", "float32", "sm_90") for name in ("mlp", "vit", "bert")]
    found = list(matrix.make(keys, 4, jobs=1))
    assert [(made.family, made.status) for made in found] == [
        ("mlp", "compiled"),
        ("vit", "failed"),
        ("bert", "compiled"),
    ]
    assert found[1].reason == "the process died"


def test_host_functions_fail_a_cell(monkeypatch):
    class Executable:
        def as_text(self):
            return "  call  vm.builtin.alloc in: dst: %1\n  call  add in: %1\n  call  sort in: %1\n"

    monkeypatch.setattr(fatbin, "kernels", lambda binary: {"add_kernel": fatbin.Kernel()})
    found = cell.Cell("mlp", "training", "float32", "sm_90")
    cell._check(found, Executable(), {"add_kernel"}, [b""])
    assert (found.status, found.host, found.calls) == ("failed", ["sort"], 2)


def test_kernels_that_are_missing_in_the_machine_code_fail_a_cell(monkeypatch):
    class Executable:
        def as_text(self):
            return "  call  add in: %1\n"

    monkeypatch.setattr(fatbin, "kernels", lambda binary: {"add_kernel": fatbin.Kernel()})
    found = cell.Cell("mlp", "training", "float32", "sm_90")
    cell._check(found, Executable(), {"add_kernel", "add_kernel_1"}, [b""])
    assert found.status == "failed"
    assert "add_kernel_1" in found.reason


def test_kernels_of_machine_code(tmp_path):
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc on the PATH: nothing here compiles CUDA source")
    source, binary = tmp_path / "k.cu", tmp_path / "k.fatbin"
    source.write_text(
        'extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1.0f; }\n'
        'extern "C" __global__ void shares(float* x) {\n'
        "  __shared__ float s[33]; float own[64];\n"
        "  s[threadIdx.x] = x[threadIdx.x]; __syncthreads();\n"
        "  for (int i = 0; i < 64; ++i) own[(i * (int)x[3]) & 63] = s[i % 33];\n"
        "  x[threadIdx.x] = own[threadIdx.x & 63]; }\n"
    )
    command = ["nvcc", "--fatbin", "-arch=sm_80", "--no-compress", "-o", str(binary), str(source)]
    subprocess.run(command, check=True)
    found = fatbin.kernels(binary.read_bytes())
    assert set(found) == {"plain", "shares"}
    assert found["plain"].shared == found["plain"].stack == 0 < found["plain"].registers
    assert (found["shares"].shared, found["shares"].stack) == (33 * 4, 64 * 4)


def test_compressed_machine_code_is_refused():
    with pytest.raises(ValueError, match="compressed"):
        fatbin.kernels(b"\x50\xed\x55\xba" + bytes(60))


def test_page_is_written_between_its_marks(tmp_path):
    page = tmp_path / "gpu.md"
    page.write_text("above\n{}\nold\n{}\nbelow\n".format(*matrix_page._MARKS))
    broken = compiled("bert", status="failed", reason="nvcc refuses")
    deep = compiled("resnet18")
    matrix_page.write_page([compiled(), compiled(arch="sm_80"), deep, broken], page)
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("\nbelow\n")
    assert "old" not in text
    assert "**3 of 4 programs compile; 0 kernels on the host.**" in text
    assert "| mlp, training | 3 · 4.0 | 3 · 4.0 |" in text
    assert "| bert, training | **fails** | not run |" in text
    assert "| resnet18 | 5 | 3 | 4.0 | 800 | 1333 |" in text
    assert "| mlp | 5 | elements 2, tiles 1 | 4 | 1.0 |" in text


def test_derived_families_have_a_part_of_their_own(tmp_path):
    page = tmp_path / "gpu.md"
    both = "{}\nold\n{}\n".format(*matrix_page._MARKS)
    page.write_text(both + "{}\nolder\n{}\n".format(*matrix_page._DERIVED_MARKS))
    matrix_page.write_page([compiled("scan")], page)
    text = page.read_text()
    assert text.startswith(both) and "older" not in text
    assert "**1 of 1 programs compile" in text and "| scan, training | 3 · 4.0 |" in text


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / "gpu.md").write_text("nothing")
    with pytest.raises(ValueError, match="derived kernels: begin"):
        matrix_page.write_page([compiled("scan")], tmp_path / "gpu.md")


@pytest.mark.parametrize("marks", [matrix_page._MARKS, matrix_page._DERIVED_MARKS])
def test_docs_hold_the_marks(marks):
    text = matrix_page.PAGE.read_text()
    assert text.index(marks[0]) < text.index(marks[1])


def test_derived_families_have_other_names():
    assert not families().keys() & derived_families().keys()


@pytest.mark.parametrize("name", ["lenet_derived", "te_op"])
def test_gradients_of_derived_families_are_derived(name):
    family = derived_families()[name]
    assert "derived" in {
        row.provenance for row in gg.coverage(family.model(), rules=family.rules).rows
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_file(dtype):
    graph = in_half(families()["lenet"].build(), dtype).graph
    values = [*graph.input, *graph.output]
    found = {value.type.tensor_type.elem_type for value in values}
    found |= {tensor.data_type for tensor in graph.initializer}
    assert found == {onnx.TensorProto.DataType.Value(dtype.upper())}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_batches_fit_models(dtype):
    family = families()["resnet_digits"]
    model, (inputs, labels) = family.model(dtype), family.batch(3, dtype)
    arrays = [*inputs.values(), *model.params.values(), *model.state.values()]
    assert {array.dtype.name for array in arrays} == {dtype}
    assert inputs["input"].shape == (3, 1, 8, 8)
    assert labels.shape == (3,)
    assert labels.dtype == np.int64
