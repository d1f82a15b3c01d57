"""The wheel is complete: built, installed elsewhere, and run from there alone."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import runpy
import sys
from pathlib import Path

import graphgrad as gg
import graphgrad.models
from graphgrad.train.data import digits

home = Path(sys.argv[1]).resolve()
for module in (gg, graphgrad.models):
    assert home in Path(module.__file__).resolve().parents, module.__file__

data = digits().train
model = gg.from_onnx(graphgrad.models.mlp((64, 16, 10)))
step = gg.train_step(model)
loss = step(data.inputs["x"][:8].reshape(8, 64), data.targets[:8])
assert 1 < loss < 10, loss
assert (step.params["fc1.weight"] != model.params["fc1.weight"]).any()
sys.argv = ["graphgrad", "--help"]
runpy.run_module("graphgrad", run_name="__main__")
"""


def run(*command: object, **options) -> str:
    arguments = [str(part) for part in command]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def isolation() -> list[str]:
    """Use the environment's own setuptools where it is new enough, else let pip fetch one."""
    try:
        major = int(metadata.version("setuptools").split(".")[0])
    except metadata.PackageNotFoundError:
        return []
    return ["--no-build-isolation"] if major >= 77 else []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder of this checkout gets into it or is left in it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("graphgrad", "models"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    run(sys.executable, "-m", "pip", "wheel", source, "--no-deps", "-w", out, *isolation())
    (built,) = out.glob("graphgrad-*.whl")
    return built


def test_wheel_holds_every_source_and_the_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path.relative_to(ROOT) for path in ROOT.glob("graphgrad/**/*.py")]
    sources += [Path("graphgrad", p.relative_to(ROOT)) for p in ROOT.glob("models/**/*.py")]
    missing = {path.as_posix() for path in sources} - names
    assert not missing
    data = {"graphgrad/models/data/digits.npz", "graphgrad/models/data/README.md"}
    page = {f"graphgrad/report/page.{ending}" for ending in ("html", "css", "js")}
    assert data | page | {"graphgrad/py.typed"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"graphgrad"}


def test_wheel_trains_where_it_is_installed(wheel, tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", home, wheel)
    environment = {**os.environ, "PYTHONPATH": str(home)}
    assert "train" in run(sys.executable, "-c", PROGRAM, home, cwd=elsewhere, env=environment)
