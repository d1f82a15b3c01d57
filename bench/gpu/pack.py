"""Pack the GPU kit: one folder that checks and times graphgrad on a machine without TVM.

    python bench/gpu/pack.py --out kit [--quick] [--target '{"kind": "cuda", "arch": "sm_90"}']

Everything is compiled here, no GPU needed. Writes the folder and an archive of it beside it, and
prints their sizes. Exit code 1 if something could not be compiled: it is told in the kit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import lzma
import shutil
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paths
import references
import tvm
from families import families
from kit import CALLS, FORMAT, MANIFEST, PROBLEMS, PYTHON, REFERENCES, STEPS
from reference import stored_in
from runtime_files import copy_runtime
from timed import FIRST, MOMENTUM, PRECISIONS, RATE, TIMED, Timed, step_name, steps_for

import graphgrad as gg
from graphgrad.errors import GraphGradError
from graphgrad.lower.cuda.architecture import compute_capability
from graphgrad.lower.cuda.compiler import arch_of
from graphgrad.lower.cuda.costs import call_costs, library_plans
from graphgrad.lower.cuda.library.cost import RATES
from graphgrad.lower.cuda.library.devices import profile_of
from graphgrad.models import bert, gpt2, resnet18, resnet50
from graphgrad.train.update import STEP

MOST_BYTES = 50_000_000
"""Of an archive: it travels with a checkout of the repository, of 11 MB, in 64 MiB."""

DTYPES = {
    "mlp": ("float32", "tf32", "bfloat16"),
    "lenet": ("float32", "float64", "tf32", "bfloat16"),
    "bert": ("float32", "float64", "tf32", "bfloat16"),
    "vit": ("float32", "tf32", "bfloat16"),
    # So deep that rounding decides the side of some activation with every batch.
    "resnet34": ("float64",),
    "resnet50": ("float64",),
}
"""What a family is checked in, unless it is float32 alone: dtypes, and precisions of float32."""

_PROGRAMS = (
    *("bench/channel.py", "bench/machine.py", "bench/process.py", "bench/rounds.py"),
    *("bench/table.py", "bench/torch_models.py"),
    *(f"bench/gpu/{name}.py" for name in ("accuracy", "calls", "check", "cudart", "encoder")),
    *(f"bench/gpu/{name}.py" for name in ("journal", "kit", "nvidia", "paths", "predictions")),
    *(f"bench/gpu/{name}.py" for name in ("race", "racer", "reference", "run", "timed")),
    *(f"bench/gpu/{name}.py" for name in ("tune", "twins")),
    *("tests/peers.py", "tests/torch_nets.py", "tests/torch_resnet.py"),
    *("models/torch_transformers.py", "LICENSE"),
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
    timed: list[str] = field(default_factory=lambda: list(FIRST))


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
    is_gpu = str(target.kind.name) == "cuda"
    for name in chosen.families:
        dtypes = DTYPES.get(name, ("float32",))
        packing.add_family(name, [each for each in dtypes if is_gpu or each != "tf32"])
    for name in chosen.timed:
        packing.add_timed(TIMED[name])
    packing.write_calls()
    about = {
        "format": FORMAT,
        "target": {"kind": str(target.kind.name), "text": str(target)},
        "device": dict(profile_of(arch_of(target)) or {}) if is_gpu else {},
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


@tvm.ir.instrument.pass_instrument
class Recorder:
    """Keeps what lowering makes of a step."""

    def __init__(self) -> None:
        self.lowered: Any = None

    def run_after_pass(self, mod: Any, info: Any) -> None:
        if str(info.name) == "graphgrad.lower":
            self.lowered = mod


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
        self._calls: dict[str, list[dict[str, Any]]] = {}
        self._problems: Counter[str] = Counter()

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
                lambda dtype=dtype: references.trained_as_in_torch(family, stored_in(dtype)),
                shapes={key: array.shape for key, array in inputs.items()},
                optimizer=optimizer,
                precision=dtype if dtype != stored_in(dtype) else "float32",
            )

    def add_timed(self, timed: Timed) -> None:
        """Write the steps of a timed model, without weights, and what their calls should take."""
        model = gg.from_onnx(onnx_file(timed))
        self.timed[timed.name] = {
            "spec": asdict(timed),
            "params": _described(model.params),
            "state": _described(model.state),
        }
        optimizer = gg.optim.SGD(RATE, momentum=MOMENTUM)
        for contender in steps_for(str(self._target.kind.name)):
            name = step_name(timed.name, contender)
            lowered = self._export(
                name,
                lambda: model,
                optimizer=optimizer,
                weights=False,
                precision=PRECISIONS[contender.split()[-1]],
                libraries="own" not in contender,
            )
            if lowered is not None and str(self._target.kind.name) == "cuda":
                self._add_calls(name, lowered)

    def _add_calls(self, name: str, lowered: Any) -> None:
        """Keep what the calls of a step should take, and the problems that cuDNN computes."""
        capability = compute_capability(arch_of(self._target))
        if capability not in RATES:
            return
        costs = call_costs(lowered, STEP, capability)
        self._calls[name] = [asdict(cost) for cost in costs]
        plans = library_plans(lowered, STEP)
        seconds = (cost.seconds for cost in costs if cost.is_of_library)
        for plan, each in zip(plans, seconds, strict=True):
            self._problems[plan.problem.key] += each  # type: ignore[assignment]

    def write_calls(self) -> None:
        """Write what calls should take, and the problems of cuDNN, those that take most first."""
        (self._root / CALLS).write_text(json.dumps(self._calls), encoding="utf-8")
        problems = [json.loads(key) for key, _ in self._problems.most_common()]
        (self._root / PROBLEMS).write_text(json.dumps(problems), encoding="utf-8")

    def _export(self, name: str, model: Callable[[], gg.Model], **options: Any) -> Any:
        """Write a step; return its lowered module, or None where that fails, which is kept."""
        say(f"{name}: compile")
        start = time.perf_counter()
        folder = self._root / STEPS / name
        folder.parent.mkdir(exist_ok=True)
        recorder = Recorder()
        context = tvm.transform.PassContext.current()
        try:
            with tvm.transform.PassContext(opt_level=context.opt_level, instruments=[recorder]):
                gg.export_step(model(), folder, target=self._target, **options)
        except GraphGradError as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            say(f"{name}: {self.failed[name]}")
        self.seconds[name] = round(time.perf_counter() - start, 1)
        return recorder.lowered


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
    if timed.model != "encoder":
        return {"bert": bert, "gpt2": gpt2}[timed.model](batch=timed.batch, **timed.sizes)
    import torch  # noqa: PLC0415 (the others do without)
    from encoder import Encoder  # noqa: PLC0415

    from tests.torch_export import export  # noqa: PLC0415

    tokens = {key: torch.from_numpy(array) for key, array in timed.data()[0].items()}
    return export(Encoder(**timed.sizes), tokens, training=True, dynamic=False)


def archive(root: Path, effort: int = 6) -> Path:
    """Write a kit's archive beside it, and return its path; more effort makes it smaller."""
    path = root.with_name(f"{root.name}.tar.xz")
    # The contenders of a model share most kernels, in libraries that lie 16 MB apart.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": effort, "dict_size": 1 << 28}]
    with (
        lzma.open(path, "w", filters=filters) as packed,
        tarfile.open(fileobj=packed, mode="w|") as file,
    ):
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
    add("--timed", type=_names(TIMED), default=FIRST, help="comma-separated; %(default)s")
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
