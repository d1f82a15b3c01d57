"""Run every check and benchmark of a GPU kit: one line each, whatever the others do.

    python run.py [--only TEXT] [--time-budget 540] [--out results] [--json]

From a packed folder it runs that. From the repository it packs one to a temporary folder first, for
this machine's GPU, and runs it there. Exit code: 0 good, 1 something is wrong or broken, 2 bad
usage, or no kit that this machine can run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nvidia
import paths
from accuracy import complaints_against
from channel import told
from journal import BROKEN, FAILED, MEASURED, NO_TIME, PASSED, SKIPPED, Journal, Line, replace, say
from kit import MANIFEST, NO_TORCH, Kit, KitError, environment, has_torch
from machine import facts, versions
from predictions import differences
from race import Race, Settings
from racer import CONTENDERS

_CHECK = Path(__file__).resolve().with_name("check.py")
_TUNE = _CHECK.with_name("tune.py")
_PACKAGES = ("torch", "triton", "numpy", "safetensors")


def main() -> None:
    arguments = parse_arguments()
    # Without this, a terminated run would leave stopped processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if not (paths.ROOT / MANIFEST).exists():
        sys.exit(pack_and_run(arguments))
    try:
        kit = Kit()
        kit.check_python()
    except KitError as error:
        sys.exit(_usage(error))
    journal = Journal(Path(arguments.out), about_this_machine(kit, arguments))
    until = time.monotonic() + arguments.time_budget
    jobs = [job for job in all_jobs(kit) if _wanted(job, arguments.only)]
    if not jobs and not _wanted(("tune", "plans", "graphgrad"), arguments.only):
        sys.exit(_usage(f"--only {arguments.only}: nothing matches"))
    for by in ("graphgrad", "torch"):
        names = [name for kind, name, whose in jobs if (kind, whose) == ("check", by)]
        with told_of("check", by, journal):
            add_checks(kit, journal, names, by, arguments, until)
    if kit.device == "cuda" and _wanted(("tune", "plans", "graphgrad"), arguments.only):
        with told_of("tune", "plans", journal):
            add_plans(kit, journal, Path(arguments.out), arguments.tune_seconds, until)
    settings = Settings(arguments.rounds, arguments.turn_seconds, arguments.start_limit, until)
    for model in kit.about["timed"]:
        contenders = [by for kind, name, by in jobs if (kind, name) == ("benchmark", model)]
        with told_of("benchmark", model, journal):
            Race(kit, model, settings, journal.add).run(contenders)
    journal.finish()
    print(json.dumps(journal.as_json(), indent=1) if arguments.json else journal.as_text())
    sys.exit(int(any(line.is_bad for line in journal.lines)))


def all_jobs(kit: Kit) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and by whom, of everything in a kit; the most telling first."""
    for name in kit.about["checks"]:
        yield "check", name, "graphgrad"
    for name in kit.about["checks"]:
        yield "check", name, "torch"
    for name in kit.about["timed"]:
        for contender in CONTENDERS:
            yield "benchmark", name, contender


@contextlib.contextmanager
def told_of(kind: str, name: str, journal: Journal) -> Iterator[None]:
    """While inside, an error of the kit itself costs this part, and not what follows."""
    try:
        yield
    except Exception as error:
        journal.add(Line(kind, name, "graphgrad kit", BROKEN, told(error)))


def add_checks(
    kit: Kit,
    journal: Journal,
    names: list[str],
    by: str,
    arguments: argparse.Namespace,
    until: float,
) -> None:
    """Run checks, several at a time: nothing is timed."""
    with ThreadPoolExecutor(arguments.checks_at_once) as pool:
        lines = [
            pool.submit(checked, kit, name, by, arguments.check_limit, until) for name in names
        ]
        try:
            for line in as_completed(lines):
                journal.add(against_ours(line.result(), journal))
        finally:
            pool.shutdown(cancel_futures=True)


def checked(kit: Kit, name: str, by: str, limit: float, until: float) -> Line:
    """Return what comes of a check in a process of its own, within its limit and until the end."""
    left = until - time.monotonic()
    if left <= 0:
        return Line("check", name, by, SKIPPED, NO_TIME)
    if by == "torch" and not has_torch():
        return Line("check", name, by, SKIPPED, NO_TORCH)
    if by == "graphgrad" and name in kit.about["failed"]:
        return Line("check", name, by, BROKEN, f"not packed: {kit.about['failed'][name]}")
    start = time.monotonic()
    status, reason, figures = _checked(name, by, min(limit, left))
    if status == BROKEN and time.monotonic() >= until:
        status, reason = SKIPPED, NO_TIME
    return Line("check", name, by, status, reason, time.monotonic() - start, figures)


def _checked(name: str, by: str, limit: float) -> tuple[str, str, dict[str, Any]]:
    command = [sys.executable, str(_CHECK), name, by]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env=os.environ | environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return BROKEN, f"no end within {limit:.0f} s: it hangs, or is too slow", {}
    if not done.stdout.strip():
        last = (done.stderr.splitlines() or ["it printed nothing"])[-1]
        return BROKEN, f"the process ended with status {done.returncode}; its last line: {last}", {}
    answer = json.loads(done.stdout)
    if "error" in answer:
        return BROKEN, answer["error"], {}
    complaints = answer.pop("complaints")
    return (FAILED, "; ".join(complaints), answer) if complaints else (PASSED, "", answer)


def add_plans(kit: Kit, journal: Journal, folder: Path, limit: float, until: float) -> None:
    """Time plans of cuDNN for so long, and write those of a device to a file of its own.

    The file, `timed-….json`, is for `graphgrad/lower/cuda/library/timed_plans`.
    """
    start = time.monotonic()
    left = min(limit, until - start)
    if left <= 0 or not kit.problems():
        reason = NO_TIME if left <= 0 else "no plans of cuDNN are packed"
        journal.add(Line("tune", "plans", "graphgrad", SKIPPED, reason))
        return
    about: dict[str, Any] = {}
    problems: list[dict[str, Any]] = []
    failures: list[str] = []
    for answer in lines_of([sys.executable, str(_TUNE)], start + left):
        if "error" in answer:
            failures.append(answer["error"])
        elif "plans" in answer:
            problems.append(answer)
            write_plans(folder, about, problems)
        else:
            about = answer
    figures = {
        "device": about,
        "differs_from_assumed": differences(about.get("properties", {}), kit.about["device"]),
        "problems": len(problems),
        "of": len(kit.problems()),
        "failures": failures,
    }
    status = MEASURED if problems else BROKEN
    reason = failures[0] if failures else ("" if problems else "nothing was timed")
    line = Line("tune", "plans", "graphgrad", status, reason, time.monotonic() - start, figures)
    journal.add(line)


def lines_of(command: list[str], until: float) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON that a process prints, until it ends or its time is over."""
    environ = os.environ | environment()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        pending = b""
        while (left := until - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            part = os.read(process.stdout.fileno(), 1 << 20)
            if not part:
                break
            *whole, pending = (pending + part).split(b"\n")
            yield from map(json.loads, whole)
        process.kill()


def write_plans(folder: Path, about: dict[str, Any], problems: list[dict[str, Any]]) -> None:
    """Write the file of timed plans, as `graphgrad.lower.cuda.library.timed` reads it."""
    device, version = about["device"], about["cudnn"]
    content = {"format": 1, "device": device, "cudnn": version, "problems": problems}
    slug = "-".join(device.lower().split())
    replace(folder / f"timed-{slug}-{version}.json", json.dumps(content))


def against_ours(line: Line, journal: Journal) -> Line:
    """Return torch's line about a check in float32 with the verdict on graphgrad's result.

    On the same device graphgrad may be at most four times as far from the reference as torch; but
    whether torch rounds to TF32 where it may, its libraries decide.
    """
    ours = journal.figures(line.kind, line.name, "graphgrad")
    if (
        line.by != "torch"
        or line.status != PASSED
        or not ours
        or line.name.endswith(("float64", "tf32"))
    ):
        return line
    complaints = complaints_against(ours["distances"], line.figures["distances"])
    if complaints:
        line.status, line.reason = FAILED, f"graphgrad's {'; '.join(complaints)}"
    return line


def about_this_machine(kit: Kit, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a reader needs to know of where the figures come from."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "machine": facts(),
        "gpu": nvidia.facts(),
        "versions": versions(_PACKAGES),
        "kit": {key: kit.about[key] for key in ("target", "versions", "packed", "failed")},
        "settings": {key: value for key, value in vars(arguments).items() if key != "json"},
    }


def pack_and_run(arguments: argparse.Namespace) -> int:
    """Pack a kit for this machine to a temporary folder, and run it there as if it had traveled.

    Returns
    -------
    int
        The exit code of the run.
    """
    import pack  # noqa: PLC0415 (needs graphgrad, which a kit does without)

    running = ".".join(platform.python_version_tuple()[:2])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "kit")
        chosen = ["--out", str(root), "--python", running, "--target", '"cuda"', *arguments.pack]
        try:
            pack.pack(pack.choice(pack.parse_arguments(chosen)), root)
        except pack.gg.TargetError as error:
            say(str(error))
            return 2
        command = [sys.executable, str(root / "run.py"), *sys.argv[1:]]
        return subprocess.run(command, check=False).returncode


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", default="results", help="folder of results.json and results.txt; %(default)s")
    add("--json", action="store_true", help="print one JSON object in the end, not the tables")
    add(
        "--only",
        action="append",
        default=[],
        help="only what has this text in its kind, name and by whom, such as 'check', "
        "'mlp.float32' or 'resnet50-64 torch'; may be repeated",
    )
    add(
        "--time-budget",
        type=_seconds,
        default=math.inf,
        help="seconds; what is not done by then is not run",
    )
    add(
        "--tune-seconds",
        type=_seconds,
        default=60.0,
        help="seconds in which plans of cuDNN are timed; %(default)s",
    )
    add(
        "--checks-at-once",
        type=int,
        default=max(1, min(8, (os.cpu_count() or 1) // 2)),
        help="checks that run at a time; %(default)s",
    )
    add("--check-limit", type=_seconds, default=120.0, help="seconds of a check; %(default)s")
    add(
        "--start-limit",
        type=_seconds,
        default=300.0,
        help="seconds of a contender's first step, with compilation; %(default)s",
    )
    add(
        "--pack",
        type=shlex.split,
        default=[],
        help="in the repository: options of pack.py, as in --pack='--quick'",
    )
    add("--rounds", type=int, default=3, help="turns of each contender; %(default)s")
    add("--turn-seconds", type=_seconds, default=1.0, help="about one turn's; %(default)s")
    return parser.parse_args()


def _wanted(job: tuple[str, str, str], only: list[str]) -> bool:
    kind, name, by = job
    return not only or any(text in f"{kind} {name} {by}" for text in only)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds above zero, given {text}")
    return value


def _usage(error: object) -> int:
    say(f"run.py: {error}")
    return 2


if __name__ == "__main__":
    main()
