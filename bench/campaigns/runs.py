"""The campaign of runs: whatever ends ``graphgrad train``, it goes on and gives the same bits.

    python bench/campaigns/runs.py --cases 1000 [--seed N] [--jobs N] [--tally FILE]

A case trains a small network without a stop, and then again in another folder, where the process
is ended two to six times: by a signal at a random moment, or at an operation on files by a signal,
with the loss of what was not flushed, or by a disk that is full or fails. Each time it is resumed,
with another number of threads. What is saved must never be older than what was saved before, and in
the end every file must hold, bit for bit, what the first run wrote, but for times.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paths  # noqa: F401 (where the modules of `bench` are found)
from campaign import Campaign, Case, Disagreement, main
from faults import BAD_DISK, FAULTS, LOST, work_with_fault
from run_jobs import JOBS, Job

import graphgrad as gg
from graphgrad.cli import output
from graphgrad.cli.checkpoints import Checkpoints
from graphgrad.cli.main import main as graphgrad
from graphgrad.lower.codegen.cache.sources import sources_digest, tvm_identity
from graphgrad.report.curve import write_picture
from graphgrad.train import checkpoint
from graphgrad.train.run import History
from tests.io_faults import in_process, io_operations

SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
AT_OPERATIONS = (*FAULTS, *SIGNALS[1:])
AT_MOMENTS = (*SIGNALS, "SIGINT SIGINT", "SIGTERM SIGKILL", "SIGHUP SIGTERM")

_ENDS = (2, 6)
"""How often a case ends its run: at least, and at most."""

_COLD = 0.1
"""How often a run that is ended at a moment compiles what others read from the cache."""

_COLD_SECONDS = 2.0
_LATEST = 0.8
"""The latest moment, as part of what the run takes that nothing ends."""

_TWO_THREADS = 0.2
_DRAWN = 0.1
"""How often a case draws its loss curve, which takes longer than all else."""

_INTERVALS = (None, "1", "1", "2", "2", "3", "5", "0.0005m")
_TIMES = ("seconds", "images_per_second")


@dataclass(frozen=True)
class Straight:
    """The run that nothing ends.

    Attributes
    ----------
    results : dict of str to Any
        What is in each file.
    operations : int
        On files.
    seconds : float
    """

    results: dict[str, Any]
    operations: int
    seconds: float


class Run:
    """A run in a folder, and what is known to be saved of it.

    Parameters
    ----------
    folder : Path
        Of the case.
    name : str
        The folder of the run has the name of the folder in it, ``out``, above it.
    arguments : list of str
        It is started with.
    is_drawn : bool
        Else as where matplotlib is missing.
    """

    def __init__(self, folder: Path, name: str, arguments: list[str], is_drawn: bool = False):
        self.root = folder / name
        self.root.mkdir()
        self.out = self.root / "out"
        self.output = folder / f"{name}.txt"
        self._promised = folder / f"{name}.saved"
        self._promised.touch()
        self._arguments = arguments
        self._is_drawn = is_drawn
        self._is_saved = False

    def work(self, threads: int = 1, cache: bool = True) -> int:
        """Start or resume it in this process; the exit code."""
        descriptor = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        # A shell may have had them ignored, as it does for programs in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.environ["GRAPHGRAD_CACHE"] = str(int(cache))
        with contextlib.suppress(gg.errors.ArgumentError):  # a copy of one that has computed
            gg.set_threads(threads)
        arguments = ["--resume"] if self._is_saved else self._arguments
        save, promised = Checkpoints.save, self._promised

        def saving(checkpoints: Checkpoints, step: Any, run: Any, history: History) -> None:
            save(checkpoints, step, run, history)
            with open(promised, "a", encoding="utf-8") as file:
                file.write(f"{checkpoints.newest.name} {len(history.losses)}\n")

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(Checkpoints, "save", saving))
            if not self._is_drawn:
                stack.enter_context(mock.patch.object(output, "write_picture", return_value=False))
            return graphgrad(["train", *arguments, "--json", "--out", str(self.out)])

    def judge(self, end: str, code: int) -> None:
        """Judge an exit code, what was said, and what is saved."""
        said = self.output.read_text(encoding="utf-8") if self.output.exists() else ""
        if code not in _codes(end):
            raise Disagreement(f"exit code {code}: {end}")
        if "Traceback" in said:
            raise Disagreement(f"a traceback is shown: {end}")
        saved = self._steps()
        for line in self._promised.read_text(encoding="utf-8").splitlines():
            name, steps = line.split()
            if saved.get(name, -1) < int(steps):
                raise Disagreement(f"older than was saved: {end}")
        for line in said.splitlines():
            event = json.loads(line) if line.startswith('{"event"') else {}
            if event.get("event") == "interrupted":
                self._judge_interrupted(event, saved, end)
        self._is_saved = "checkpoint.safetensors" in saved

    def _judge_interrupted(self, event: dict[str, Any], saved: dict[str, int], end: str) -> None:
        """Judge what a run says that a signal has ended."""
        if event["done"] not in (0, *saved.values()):
            raise Disagreement(f"not saved to the step that is told: {end}")
        if bool(event["resume"]) != ("checkpoint.safetensors" in saved):
            raise Disagreement(f"wrong about how to go on: {end}")

    def results(self) -> dict[str, Any]:
        """What is in each file of the folder, but for times and the checkpoints before the last."""
        results: dict[str, Any] = {}
        for path in sorted(self.root.rglob("*")):
            if path.name.endswith(".previous.safetensors"):
                checkpoint.read(path)  # is whole
            elif path.suffix == ".safetensors":
                results[path.name] = _state(path)
            elif path.name == "history.json":
                results[path.name] = _without_times(json.loads(path.read_text(encoding="utf-8")))
            elif path.is_file():
                results[path.name] = path.read_bytes()
        return results

    def _steps(self) -> dict[str, int]:
        """The steps in the newest checkpoint that is whole, of the run and of its twin."""
        steps = {}
        for name in ("checkpoint.safetensors", "frozen-twin.safetensors"):
            checkpoints = Checkpoints(self.out / name)
            if any(path.is_file() for path in checkpoints.files):
                saved = checkpoints.read()
                if saved.damaged:
                    raise Disagreement("a checkpoint is damaged")
                steps[name] = len(saved.history.losses)
        return steps


def judge(case: Case) -> Counter[str]:
    """Draw a job and what ends it; compare what it writes with a run that nothing ends."""
    rng = case.rng()
    return judge_job(JOBS[str(rng.choice(list(JOBS)))], case.folder, rng)


def judge_job(job: Job, folder: Path, rng: np.random.Generator) -> Counter[str]:
    """End a job some times, and compare what it writes with a run that nothing ends.

    Returns
    -------
    Counter
        By what ended processes of it, how many.
    """
    arguments = [*job.prepare(folder), *_drawn(rng)]
    is_drawn = bool(rng.random() < _DRAWN)
    straight = _straight(Run(folder, "straight", arguments, is_drawn), folder / "operations")
    run = Run(folder, "ended", arguments, is_drawn)
    ends = [_end(run, straight, folder, rng) for _ in range(rng.integers(*_ENDS, endpoint=True))]
    code = in_process(run.work)
    run.judge("nothing", code)
    results = run.results()
    if results.keys() != straight.results.keys():
        raise Disagreement("other files are left than by a run that nothing ends")
    for name, content in straight.results.items():
        if results[name] != content:
            raise Disagreement(f"not the bits of a run that nothing ends: {name}")
    return Counter(filter(None, ends))


def _straight(run: Run, count: Path) -> Straight:
    """Make a run that nothing ends; the file `count` gets the number of its operations."""

    def work() -> int:
        with io_operations(run.root) as names:
            code = run.work()
        count.write_text(str(len(names)), encoding="utf-8")
        return code

    begin = time.perf_counter()
    code = in_process(work)
    seconds = time.perf_counter() - begin
    run.judge("nothing", code)
    return Straight(run.results(), int(count.read_text(encoding="utf-8")), seconds)


def _end(run: Run, straight: Straight, folder: Path, rng: np.random.Generator) -> str:
    """Start or resume a run, end it, and judge what is left; what it was ended by, if it was."""
    # Threads wait for each other busily, which takes long where others need the cores.
    threads, half = 1 + int(rng.random() < _TWO_THREADS), bool(rng.integers(2))
    if rng.random() < 0.5:
        end, when = str(rng.choice(AT_MOMENTS)), "at a moment"
        is_cold = bool(rng.random() < _COLD)
        length = _LATEST * straight.seconds + (_COLD_SECONDS if is_cold else 0.0)
        moments = np.diff(np.sort(rng.random(len(end.split()))), prepend=0.0) * length
        numbers = [int(signal.Signals[name]) for name in end.split()]
        code = in_process(
            lambda: run.work(threads, cache=not is_cold),
            list(zip(moments.tolist(), numbers, strict=True)),
        )
    else:
        end, when = str(rng.choice(AT_OPERATIONS)), "at an operation on files"
        at = int(rng.integers(straight.operations))
        if end in FAULTS:
            code = work_with_fault(
                lambda: run.work(threads), end, run.root, folder, at=at, half=half, rng=rng
            )
        else:
            number = signal.Signals[end]

            def work() -> int:
                with io_operations(run.root, at, lambda: signal.raise_signal(number)):
                    return run.work(threads)

            code = in_process(work)
    run.judge(end, code)
    return f"{end} {when}" if code else ""


def _codes(end: str) -> set[int]:
    """The exit codes that are right where something should end a run; 0 if it came too late."""
    if end in BAD_DISK:
        return {0, 2}
    if end == LOST:
        return {-signal.SIGKILL}
    names = [name for name in end.split() if name in SIGNALS]
    numbers = [signal.Signals[name] for name in names or (["SIGKILL"] if end in FAULTS else [])]
    # Before it is listened to, a signal ends the process.
    return {0} | {-number for number in numbers} | {128 + number for number in numbers}


def _drawn(rng: np.random.Generator) -> list[str]:
    """Arguments that change what is computed, but not what is compiled."""
    arguments = ["--steps", str(rng.integers(6, 20)), "--seed", str(rng.integers(100))]
    arguments += ["--schedule", str(rng.choice(["cosine", "constant", "one-cycle"]))]
    interval = _INTERVALS[int(rng.integers(len(_INTERVALS)))]
    return arguments if interval is None else [*arguments, "--save-every", interval]


def _state(path: Path) -> Any:
    """What a checkpoint holds, but for times."""
    groups, facts = checkpoint.read(path)
    arrays = {
        (group, name): (array.dtype.str, array.shape, array.tobytes())
        for group, members in groups.items()
        for name, array in members.items()
    }
    saved = Checkpoints(path).read()
    history = _without_times(asdict(saved.history))
    return arrays, {**facts, "extra": None}, saved.run, json.dumps(history)


def _without_times(content: Any) -> Any:
    """JSON without what depends on the clock."""
    if isinstance(content, list):
        return [_without_times(entry) for entry in content]
    if isinstance(content, dict):
        return {k: _without_times(entry) for k, entry in content.items() if k not in _TIMES}
    return content


def prepare() -> None:
    """Do what each run would have to do again: compile into the cache, import and look around."""
    write_picture(os.devnull, [1.0], [(1, 0.5)])
    tvm_identity()
    sources_digest()
    for job in JOBS.values():
        with tempfile.TemporaryDirectory() as folder:
            arguments = [*job.prepare(Path(folder)), "--steps", "2"]
            run = Run(Path(folder), "cold", arguments)
            run.judge("nothing", in_process(run.work))


RUNS = Campaign("runs", judge)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GRAPHGRAD_CACHE_DIR"] = cache
        prepare()
        sys.exit(main(RUNS))
