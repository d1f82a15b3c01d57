"""Pack the GPU kit: one folder that checks and times graphgrad on a machine without TVM.

    python bench/gpu/pack.py --out kit [--quick] [--target '{"kind": "cuda", "arch": "sm_90"}']

Everything is compiled here, no GPU needed. Writes the folder and an archive of it beside it, and
prints their sizes. Exit code 1 if something could not be compiled: it is told in the kit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paths
import references
from families import families
from kit import FORMAT, MANIFEST, PYTHON, REFERENCES, STEPS
from runtime_files import copy_runtime
from timed import MOMENTUM, RATE, TIMED, WHOLE, Timed

import graphgrad as gg
from graphgrad.errors import GraphGradError
from graphgrad.models import resnet18, resnet50

MOST_BYTES = 60_000_000
DTYPES = {
    "lenet": ("float32", "float64"),
    "bert": ("float32", "float64"),
    # So deep that rounding decides the side of some activation with every batch.
    "resnet34": ("float64",),
    "resnet50": ("float64",),
}
"""What a family is checked in, unless it is float32 alone."""

_PROGRAMS = (
    *("bench/channel.py", "bench/machine.py", "bench/process.py", "bench/rounds.py"),
    *("bench/table.py", "bench/torch_models.py"),
    *(f"bench/gpu/{name}.py" for name in ("accuracy", "check", "cudart", "encoder", "journal")),
    *(f"bench/gpu/{name}.py" for name in ("kit", "nvidia", "paths", "race", "racer", "reference")),
    *(f"bench/gpu/{name}.py" for name in ("run", "timed", "twins")),
    *("tests/peers.py", "tests/torch_nets.py", "tests/torch_resnet.py", "LICENSE"),
)
_AT_THE_TOP = {"bench/gpu/start.py": "run.py", "bench/gpu/README.md": "README.md"}
_PACKAGES = ("graphgrad", "apache-tvm", "apache-tvm-ffi", "torch")


def _all_families() -> list[str]:
    return list(families())


@dataclass(frozen=True)
class Choice:
    """What goes into a kit.

    Attributes
    ----------
    python : str
        Version of the Python there.
    target : str or dict
        As `graphgrad.target` takes it; ``"cuda"`` is this machine's GPU.
    families : list of str
        To be checked, in `DTYPES`.
    timed : list of str
        To be timed.
    """

    python: str = "3.12"
    target: Any = "cuda"
    families: list[str] = field(default_factory=_all_families)
    timed: list[str] = field(default_factory=lambda: list(WHOLE))


def pack(chosen: Choice, root: Path) -> dict[str, Any]:
    """Write a kit; return what its manifest says.

    Parameters
    ----------
    chosen : Choice
    root : path
        A folder that does not exist yet.

    Raises
    ------
    TargetError
        The target is unknown.
    RuntimeError
        Packages for another Python cannot be had, or a reference cannot be trusted.
    """
    target = gg.target(chosen.target)
    copy_programs(root)
    copy_runtime(root / PYTHON, chosen.python)
    (root / REFERENCES).mkdir()
    packing = Packing(root, target)
    for name in chosen.families:
        packing.add_family(name, DTYPES.get(name, ("float32",)))
    for name in chosen.timed:
        packing.add_timed(TIMED[name])
    about = {
        "format": FORMAT,
        "target": {"kind": str(target.kind.name), "text": str(target)},
        "python": chosen.python,
        "packed": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
        "checks": packing.checks,
        "timed": packing.timed,
        "failed": packing.failed,
        "seconds": packing.seconds,
    }
    (root / MANIFEST).write_text(json.dumps(about, indent=1), encoding="utf-8")
    return about


class Packing:
    """Steps and references on their way into a kit.

    Attributes
    ----------
    checks : list of str
    timed : dict of str to dict
    failed : dict of str to str
        What could not be compiled, and why.
    seconds : dict of str to float
        That compiling took.
    """

    def __init__(self, root: Path, target: Any):
        self._root, self._target = root, target
        self.checks: list[str] = []
        self.timed: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def add_family(self, name: str, dtypes: Sequence[str]) -> None:
        """Write a family's reference, and its step in some dtypes."""
        say(f"{name}: reference")
        family = families()[name]
        reference = references.compute(family, "float32" in dtypes)
        reference.save(self._root / REFERENCES / f"{name}.safetensors")
        inputs, _ = reference.batches[0]
        optimizer = gg.optim.SGD(references.RATE, momentum=references.MOMENTUM)
        for dtype in dtypes:
            self.checks.append(f"{name}.{dtype}")
            self._export(
                f"{name}.{dtype}",
                lambda dtype=dtype: references.trained_as_in_torch(family, dtype),
                shapes={key: array.shape for key, array in inputs.items()},
                optimizer=optimizer,
            )

    def add_timed(self, timed: Timed) -> None:
        """Write the step of a timed model, without weights."""
        model = gg.from_onnx(onnx_file(timed))
        self.timed[timed.name] = {
            "spec": asdict(timed),
            "params": _described(model.params),
            "state": _described(model.state),
        }
        optimizer = gg.optim.SGD(RATE, momentum=MOMENTUM)
        self._export(timed.name, lambda: model, optimizer=optimizer, weights=False)

    def _export(self, name: str, model: Callable[[], gg.Model], **options: Any) -> None:
        say(f"{name}: compile")
        start = time.perf_counter()
        folder = self._root / STEPS / name
        folder.parent.mkdir(exist_ok=True)
        try:
            gg.export_step(model(), folder, target=self._target, **options)
        except GraphGradError as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            say(f"{name}: {self.failed[name]}")
        self.seconds[name] = round(time.perf_counter() - start, 1)


def copy_programs(root: Path) -> None:
    """Copy what runs in a kit, and what says how, to the same places as in the repository."""
    for name in (*_PROGRAMS, *_AT_THE_TOP):
        place = root / _AT_THE_TOP.get(name, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(paths.ROOT / name, place)


def onnx_file(timed: Timed) -> Any:
    """Return a timed model as an ONNX file in training form, with a fixed batch."""
    if timed.is_image:
        build = {"resnet18": resnet18, "resnet50": resnet50}[timed.model]
        return build(batch=timed.batch, size=timed.image)
    import torch  # noqa: PLC0415 (the others do without)
    from encoder import Encoder  # noqa: PLC0415

    from tests.torch_export import export  # noqa: PLC0415

    tokens = {key: torch.from_numpy(array) for key, array in timed.data()[0].items()}
    return export(Encoder(**timed.sizes), tokens, training=True, dynamic=False)


def archive(root: Path, effort: int = 6) -> Path:
    """Write a kit's archive beside it, and return its path; more effort makes it smaller."""
    path = root.with_name(f"{root.name}.tar.xz")
    with tarfile.open(path, "w:xz", preset=effort) as file:
        file.add(root, arcname=root.name)
    return path


def main() -> None:
    arguments = parse_arguments()
    root = Path(arguments.out)
    try:
        about = pack(choice(arguments), root)
    except gg.TargetError as error:
        say(f"--target: {error}")
        sys.exit(2)
    packed = archive(root)
    unpacked = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    size = packed.stat().st_size
    print(f"{root}: {unpacked / 1e6:.1f} MB in {sum(about['seconds'].values()):.0f} s of compiling")
    print(f"{packed}: {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        print(f"that is more than {MOST_BYTES / 1e6:.0f} MB: leave models out")
    sys.exit(int(bool(about["failed"]) or size > MOST_BYTES))


def choice(arguments: argparse.Namespace) -> Choice:
    """Return what the command line chooses."""
    return Choice(arguments.python, arguments.target, arguments.families, arguments.timed)


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or the given arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", required=True, help="the folder to write, which must not exist yet")
    add(
        "--target",
        type=json.loads,
        default={"kind": "cuda", "arch": "sm_90"},
        help="as JSON; %(default)s",
    )
    add("--python", default="3.12", help="version of the Python there; %(default)s")
    add("--families", type=_names(families()), default=_all_families(), help="comma-separated")
    add("--timed", type=_names(TIMED), default=WHOLE, help="comma-separated")
    add("--quick", action="store_true", help="leave out what is timed: minutes instead of long")
    arguments = parser.parse_args(given)
    if arguments.quick:
        arguments.timed = []
    if Path(arguments.out).exists():
        parser.error(f"--out {arguments.out} exists already; name a new folder, or remove it")
    return arguments


def _names(known: Any) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",") if text else []
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {unknown}; there are {list(known)}")
        return names

    return read


def _described(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()]


def say(text: str) -> None:
    """Tell of progress where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
