"""The GPU kit, packed for this machine's processor: it travels, runs alone, finds what is wrong.

The Python that runs it has numpy and nothing else: no graphgrad, no TVM but the packed one.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.emulator.toolchain import MissingToolError, environment
from tests.peers import peer

RUNNING = ".".join(platform.python_version_tuple()[:2])
CHECK, TIMED = "mlp.float32", "encoder-tiny"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a Python that has numpy alone."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Return a kit that has traveled: packed, archived, removed, and unpacked elsewhere."""
    peer("torch")
    import pack

    root = tmp_path_factory.mktemp("packed") / "kit"
    choice = pack.Choice(python=RUNNING, target="llvm", families=["mlp"], timed=[TIMED])
    assert pack.pack(choice, root)["failed"] == {}
    archive = pack.archive(root, effort=0)
    shutil.rmtree(root)
    there = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(there, filter="data")
    return there / "kit"


@pytest.fixture
def run(python, tmp_path):
    """Run a kit; return the exit code, the lines by name and by whom, and the whole process."""

    def run(kit, *arguments):
        command = [python, kit / "run.py", "--out", tmp_path / "results", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        file = tmp_path / "results" / "results.json"
        lines = json.loads(file.read_text())["lines"] if file.exists() else []
        return done, {(line["name"], line["by"]): line for line in lines}

    return run


def altered(kit, destination, **changes):
    """Copy a kit with other facts in its manifest."""
    shutil.copytree(kit, destination)
    manifest = destination / "kit.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    return destination


def with_checks(kit, destination, *names):
    """Copy a kit with further checks, equal to its own, and without anything timed."""
    altered(kit, destination, checks=[CHECK, *names], timed={})
    for name in names:
        shutil.copytree(kit / "steps" / CHECK, destination / "steps" / name)
        file = destination / "references" / "mlp.safetensors"
        shutil.copy(file, file.with_stem(name.removesuffix(".float32")))
    return destination


def loader(kit, name):
    return kit / "steps" / name / "exported_step" / "__init__.py"


def test_everything_passes(unpacked, run, tmp_path):
    done, lines = run(unpacked, "--json", "--rounds", "2", "--turn-seconds", "0.05")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["finished"] and result["benchmark"] == "gpu"
    assert result["machine"]["python"] and result["kit"]["target"]["kind"] == "llvm"
    ours = lines[CHECK, "graphgrad"]
    assert ours["status"] == "passed" and len(ours["figures"]["losses"]) == 3
    # Float32 is not exact: a distance of zero would mean that nothing was compared.
    assert 0 < ours["figures"]["distances"]["params"] < 1e-5
    assert lines[CHECK, "torch"]["reason"] == "torch is not installed"
    timed = lines[TIMED, "graphgrad fp32"]
    assert timed["status"] == "measured" and timed["figures"]["step_ms"] > 0
    assert len(timed["figures"]["turns_ms"]) == 2
    half = lines[CHECK.replace("32", "16").replace("float", "bfloat"), "graphgrad"]["figures"]
    assert 1e-4 < half["distances"]["params"] < 4 * half["torch_cpu_distances"]["params"]
    assert lines[TIMED, "graphgrad bf16"]["status"] == "measured"
    assert "not packed for a cpu" in lines[TIMED, "graphgrad own bf16"]["reason"]
    assert lines[TIMED, "torch eager fp32"]["reason"] == "torch is not installed"
    text = (tmp_path / "results" / "results.txt").read_text()
    assert CHECK in text and "NOT FINISHED" not in text


def test_one_bad_check_costs_one_line(unpacked, run, tmp_path):
    import reference

    kit = with_checks(unpacked, tmp_path / "kit", "wrong.float32", "dies.float32", "hangs.float32")
    planted = reference.load(kit / "references" / "wrong.safetensors")
    planted.exact.changes["params"]["fc2.bias"][3] *= 1.001
    planted.save(kit / "references" / "wrong.safetensors")
    loader(kit, "dies.float32").write_text("import os\nos.abort()\n")
    loader(kit, "hangs.float32").write_text("import time\ntime.sleep(1000)\n")
    done, lines = run(kit, *(f"--only={name}" for name in (CHECK, "wrong", "dies")))
    assert done.returncode == 1
    _, hanging = run(kit, "--check-limit", "2", "--only", "hangs.float32 graphgrad")
    lines |= hanging
    found = {
        name: (line["status"], line["reason"])
        for (name, by), line in lines.items()
        if by == "graphgrad"
    }
    assert found[CHECK] == ("passed", "")
    assert found["wrong.float32"][0] == "FAILED" and "params" in found["wrong.float32"][1]
    assert found["dies.float32"][0] == "BROKEN" and "status -6" in found["dies.float32"][1]
    assert found["hangs.float32"][0] == "BROKEN" and "within 2 s" in found["hangs.float32"][1]


def test_what_was_not_packed_is_told(unpacked, run, tmp_path):
    kit = altered(
        unpacked, tmp_path / "kit", failed={CHECK: "LoweringError: no", f"{TIMED}.fp32": "no"}
    )
    done, lines = run(kit, "--only", "graphgrad")
    assert done.returncode == 1
    assert lines[CHECK, "graphgrad"]["reason"] == "not packed: LoweringError: no"
    assert lines[TIMED, "graphgrad fp32"]["reason"] == "not packed: no"


def test_without_time_nothing_runs_and_all_is_told(unpacked, run):
    _, lines = run(unpacked, "--time-budget", "0.001")
    assert {line["status"] for line in lines.values()} == {"not run"}
    assert len(lines) == 2 * 2 + 12


def test_the_calls_of_a_step_are_timed_one_by_one(unpacked, python):
    program = unpacked / "bench" / "gpu" / "racer.py"
    variables = {"PYTHONPATH": str(unpacked / "python"), "TVM_USE_RUNTIME_LIB": "1"}
    done = subprocess.run(
        [python, program, TIMED, "graphgrad fp32"],
        input='{"calls": 2}\n',
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    first, calls = map(json.loads, done.stdout.splitlines())
    assert first["initial_loss"] > 0
    assert len(calls["calls"]) > 20 and all(seconds > 0 for _, seconds in calls["calls"])
    assert any("matmul" in name for name, _ in calls["calls"])


PACKER = """
import sys

sys.path.insert(0, "bench/gpu")
import pack
from pathlib import Path
from tests.lower.cuda.library.test_offline import convolutions

pack.DTYPES["mlp"] = ("float32",)
pack.steps_for = lambda kind: ["graphgrad fp32"]
target = {"kind": "cuda", "arch": "sm_90"}
chosen = pack.Choice(sys.argv[2], target, families=["mlp"], timed=[sys.argv[3]])
assert pack.pack(chosen, Path(sys.argv[1]))["failed"] == {}
problems = [each.to_json() for each in convolutions("bfloat16")]
Path(sys.argv[1], "problems.json").write_text(pack.json.dumps(problems))
"""


@pytest.mark.slow
def test_on_an_emulated_gpu(python, tmp_path):
    """Checks, recorded steps and single calls; the timing of plans comes as far as cuDNN."""
    peer("torch")
    try:
        environ = os.environ | environment()
    except MissingToolError as error:
        pytest.skip(str(error))
    kit, results = tmp_path / "kit", tmp_path / "results"
    packing = [sys.executable, "-c", PACKER, kit, RUNNING, TIMED]
    subprocess.run(packing, env=environ, cwd=Path(__file__).parents[3], check=True)
    turns = ("--rounds", "2", "--turn-seconds", "0.1")
    wanted = [f"--only={each}" for each in ("check", "tune", f"{TIMED} graphgrad fp32")]
    environ.pop("PYTHONPATH", None)
    subprocess.run(
        [python, kit / "run.py", "--out", results, *turns, *wanted], env=environ, check=False
    )
    result = json.loads((results / "results.json").read_text())
    lines = {(line["kind"], line["by"]): line for line in result["lines"]}
    assert result["finished"] and lines["check", "graphgrad"]["status"] == "passed"
    assert "cuDNN does not load" in lines["tune", "graphgrad"]["reason"]
    timed = lines["benchmark", "graphgrad fp32"]
    assert timed["status"] == "measured" and timed["figures"]["furthest"]


@pytest.mark.parametrize("changes, arguments, text", [
    ({"python": "3.99"}, [], "packed for Python 3.99"),
    ({"format": 99}, [], "format 99, expected 2"),
    ({}, ["--only", "resnet99"], "nothing matches"),
    ({}, ["--time-budget", "0"], "above zero"),
], ids=["python", "format", "only", "budget"])  # fmt: skip
def test_bad_usage(unpacked, run, tmp_path, changes, arguments, text):
    done, lines = run(altered(unpacked, tmp_path / "kit", **changes), *arguments)
    assert done.returncode == 2 and text in done.stderr and not lines


def test_in_the_repository_it_packs_first(monkeypatch, tmp_path):
    peer("torch")
    import pack
    import run

    packed, commands = [], []
    monkeypatch.setattr(pack, "pack", lambda chosen, root: packed.append((chosen, root)))
    ended = SimpleNamespace(returncode=7)
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command) or ended)
    monkeypatch.setattr("sys.argv", ["run.py", "--only", "check", "--pack=--quick"])
    assert run.pack_and_run(run.parse_arguments()) == 7
    [(chosen, root)], [command] = packed, commands
    assert (chosen.python, chosen.target, chosen.timed) == (RUNNING, "cuda", [])
    assert {"mlp", "bert", "resnet18"} <= set(chosen.families)
    assert command[1:4] == [str(root / "run.py"), "--only", "check"]


def test_a_kit_holds_no_graphgrad_and_no_compiler(unpacked):
    names = {path.name for path in unpacked.rglob("*")}
    assert not names & {"graphgrad", "libtvm_compiler.so"}
    assert {"libtvm_runtime_cuda.so", "libtvm_ffi.so", "LICENSE", "NOTICE"} <= names
