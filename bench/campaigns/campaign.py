"""The runner of campaigns: many generated cases, each within limits, in runs that add up.

A case is a number: its random generator follows from the names and numbers of campaign, seed and
case, so any case can be made again, on any machine. Worker processes judge the cases; each line of
the journal is whole once it is written, so a run that is killed goes on where it stopped. A program
of this folder makes a `Campaign` and calls `main`, which takes

    --cases N       judge cases 0 to N - 1 of the seed, less those in the journal
    --again         judge those again that went wrong before
    --only INDEX    judge one case in this process, and show where it fails
    --tally FILE    add the counts of this seed to a file of JSON

and ends with 1 where something of ours went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import shutil
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import paths  # noqa: F401 (where the modules of `bench` are found)
import pool
from machine import facts, versions
from table import table

import graphgrad as gg
from graphgrad.runtime import ExportedStepError

AGREE, REFUSED, DISAGREE = "agree", "refused", "disagree"
NO_ORACLE = "no oracle"
FOREIGN, SIGNAL = "foreign exception", "signal"
OVER_TIME, OVER_MEMORY = "over time", "over memory"
OUTCOMES = (AGREE, REFUSED, NO_ORACLE, DISAGREE, FOREIGN, SIGNAL, OVER_TIME, OVER_MEMORY)
"""Refused is an error of graphgrad's own; a signal is any end of the worker by itself."""

GOOD = (AGREE, REFUSED, NO_ORACLE)

Judge = Callable[["Case"], Mapping[str, int] | None]

_OF_DEATHS = {pool.SIGNAL: SIGNAL, pool.TIME: OVER_TIME, pool.MEMORY: OVER_MEMORY}
_KEPT = 3  # inputs of each kind of failure
_PROGRESS_SECONDS = 10
_FRAMES = 3


class Disagreement(Exception):
    """What a judge raises where a result is wrong; equal messages count as one kind of failure."""


class NoOracle(Exception):
    """What a judge raises where nobody can say what is right, or who says it is not followed."""


@dataclass(frozen=True)
class Case:
    """A case of a campaign.

    Attributes
    ----------
    campaign : str
    seed, index : int
    folder : Path
        Empty; what the judge leaves there is kept if the case goes wrong.
    """

    campaign: str
    seed: int
    index: int
    folder: Path

    def rng(self) -> np.random.Generator:
        """The random generator of the case, always in the same state."""
        return np.random.default_rng([zlib.crc32(self.campaign.encode()), self.seed, self.index])


@dataclass(frozen=True)
class Campaign:
    """What is judged, and by what.

    Attributes
    ----------
    name : str
    judge : callable
        Makes the input of a case and judges it: it returns where all is well, raises an error of
        graphgrad's own where the input is refused, `NoOracle`, or `Disagreement`. It may return
        counts of what the case held, which are added up.
    """

    name: str
    judge: Judge


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes
    ----------
    index : int
    outcome : str
        Of `OUTCOMES`.
    kind : str
        The type of the error and the innermost functions, by which failures are told apart.
    reason : str
    seconds : float
    megabytes : float
        The highest resident memory of the worker.
    counts : mapping of str to int
        Of what the case held, where it agreed.
    """

    index: int
    outcome: str
    kind: str = ""
    reason: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)


class Journal:
    """The outcomes of the cases of a campaign's seed, in a file to which lines are appended.

    Parameters
    ----------
    folder : Path
        Made if it is missing; the inputs of failures are kept below it.
    campaign : str
    seed : int
    """

    def __init__(self, folder: Path, campaign: str, seed: int):
        self.folder = folder / f"{campaign}-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / "journal.jsonl"
        self._outcomes: dict[int, Outcome] = {}
        self._kinds: Counter[str] = Counter()
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        for line in lines:
            # The last line is torn if the run was killed while it was written.
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if "index" in entry:
                    self._note(Outcome(**entry))
        self._file: TextIO = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (until `close`)
        if lines and lines[-1]:
            self._file.write("\n")

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Note a run, with what figures depend on."""
        run = {"run": dict(settings), "machine": facts(), "versions": versions()}
        self._write(run)

    def add(self, outcome: Outcome, inputs: Path) -> None:
        """Note an outcome; move the folder of inputs to the failures if it is a new kind of one."""
        if outcome.outcome not in GOOD and self._kinds[outcome.kind] < _KEPT:
            digest = hashlib.sha256(outcome.kind.encode()).hexdigest()[:10]
            kept = self.folder / "failures" / digest / str(outcome.index)
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            inputs.rename(kept)
            (kept / "reason.txt").write_text(
                f"{outcome.outcome}\n{outcome.kind}\n\n{outcome.reason}\n", encoding="utf-8"
            )
        self._note(outcome)
        self._write(asdict(outcome))

    def outcomes(self) -> dict[int, Outcome]:
        """The last outcome of each case, by index."""
        return self._outcomes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _note(self, outcome: Outcome) -> None:
        self._outcomes[outcome.index] = outcome
        if outcome.outcome not in GOOD:
            self._kinds[outcome.kind] += 1

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def run(
    campaign: Campaign,
    cases: Iterable[int],
    journal: Journal,
    seed: int = 0,
    jobs: int = 2,
    seconds: float = 30,
    gigabytes: float = 2,
) -> Iterator[Outcome]:
    """Judge cases by index, and yield each outcome once the journal has it."""
    scratch = journal.folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)

    def prepared() -> Iterator[Case]:
        for index in cases:
            folder = scratch / str(index)
            folder.mkdir(parents=True)
            yield Case(campaign.name, seed, index, folder)

    judge = partial(judged, campaign.judge)
    for served in pool.serve(prepared(), judge, jobs, seconds, gigabytes * 1e9):
        if served.death is None:
            outcome, kind, reason, counts = served.value
        else:
            counts = {}
            outcome, reason = _OF_DEATHS[served.death], f"{served.reason}\n{served.log[-4000:]}"
            kind = " ".join([outcome, *_frames_of_log(served.log)])
        seconds_taken, megabytes = round(served.seconds, 2), served.peak // 10**6
        result = Outcome(served.case.index, outcome, kind, reason, seconds_taken, megabytes, counts)
        journal.add(result, served.case.folder)
        shutil.rmtree(served.case.folder, ignore_errors=True)  # unless it was moved
        yield result
    shutil.rmtree(scratch, ignore_errors=True)


def judged(judge: Judge, case: Case) -> tuple[str, str, str, Mapping[str, int]]:
    """The outcome of a case, the kind of failure, the reason, and the counts."""
    try:
        counts = judge(case)
    except (gg.errors.GraphGradError, ExportedStepError) as error:
        return REFUSED, type(error).__name__, str(error)[:300], {}
    except NoOracle as error:
        return NO_ORACLE, str(error), "", {}
    except Disagreement as error:
        return DISAGREE, str(error), str(error), {}
    except MemoryError as error:
        return OVER_MEMORY, _kind(error), traceback.format_exc()[-4000:], {}
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return FOREIGN, _kind(error), traceback.format_exc()[-4000:], {}
    return AGREE, "", "", dict(counts or {})


def main(campaign: Campaign, arguments: list[str] | None = None) -> int:
    """Run a campaign as the command line says, and tell of it."""
    options = _parser(campaign).parse_args(arguments)
    journal = Journal(options.folder, campaign.name, options.seed)
    if options.only is not None:
        return _show(campaign, options, journal.folder / "only" / str(options.only))
    earlier = journal.outcomes()
    waiting = [
        index
        for index in range(options.cases)
        if index not in earlier or (options.again and earlier[index].outcome not in GOOD)
    ]
    journal.begin({"cases": options.cases, "seconds": options.seconds, "memory": options.memory})
    begin = told = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        outcomes = run(
            campaign, waiting, journal, options.seed, options.jobs, options.seconds, options.memory
        )
        for done, _ in enumerate(outcomes, 1):
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                counts = ", ".join(f"{n:,} {name}" for name, n in _counts(journal).items() if n)
                rate = done / (told - begin)
                print(f"{done:,}/{len(waiting):,} at {rate:.1f}/s: {counts}", file=sys.stderr)
    journal.close()
    result = summary(campaign, options.seed, journal)
    if options.tally:
        add_to_tally(options.tally, result)
    print(json.dumps(result) if options.json else report(result))
    return int(any(result["outcomes"][outcome] for outcome in OUTCOMES if outcome not in GOOD))


def summary(campaign: Campaign, seed: int, journal: Journal) -> dict[str, Any]:
    """Everything about a campaign's seed, as JSON holds it."""
    outcomes = journal.outcomes().values()
    kinds = Counter((o.outcome, o.kind) for o in outcomes if o.outcome != AGREE)
    by_index = sorted(outcomes, key=lambda o: o.index, reverse=True)
    first = {(o.outcome, o.kind): o for o in by_index}
    return {
        "campaign": campaign.name,
        "seed": seed,
        "cases": len(outcomes),
        "outcomes": _counts(journal),
        "counts": dict(sum((Counter(o.counts) for o in outcomes), Counter())),
        "slowest_seconds": max((o.seconds for o in outcomes), default=0.0),
        "most_megabytes": max((o.megabytes for o in outcomes), default=0.0),
        "kinds": [
            {"outcome": outcome, "kind": kind, "count": count, "index": first[outcome, kind].index}
            for (outcome, kind), count in kinds.most_common()
        ],
        "versions": versions(),
    }


def report(result: Mapping[str, Any]) -> str:
    """A summary as text: the counts, then each kind of refusal and failure."""
    counts = [[outcome, f"{count:,}"] for outcome, count in result["outcomes"].items()]
    kinds = [[k["kind"], k["outcome"], str(k["count"]), str(k["index"])] for k in result["kinds"]]
    title = f"{result['campaign']}, seed {result['seed']}"
    limits = f"slowest {result['slowest_seconds']:g} s, most {result['most_megabytes']:g} MB"
    parts = [table([title, "cases"], [*counts, ["all", f"{result['cases']:,}"]]), limits]
    if result["counts"]:
        held = [[name, f"{count:,}"] for name, count in sorted(result["counts"].items())]
        parts.append(table(["cases held", "in all"], held))
    if kinds:
        parts.append(table(["kind", "outcome", "cases", "first"], kinds))
    return "\n\n".join(parts)


def add_to_tally(path: Path, result: Mapping[str, Any]) -> None:
    """Put the counts of a campaign's seed into a file, unless it has those of more cases."""
    tally = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    seeds = tally.setdefault(result["campaign"], {})
    if seeds.get(str(result["seed"]), {"cases": 0})["cases"] <= result["cases"]:
        kept = ("cases", "outcomes", "counts", "slowest_seconds", "most_megabytes", "versions")
        seeds[str(result["seed"])] = {key: result[key] for key in kept if result[key]}
    path.write_text(json.dumps(tally, indent=1) + "\n", encoding="utf-8")


def _show(campaign: Campaign, options: argparse.Namespace, folder: Path) -> int:
    """Judge one case here; its input stays in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case = Case(campaign.name, options.seed, options.only, folder)
    outcome, kind, reason, _ = judged(campaign.judge, case)
    print(f"{outcome}: {kind}\n{reason}\nits input is in {folder}")
    return int(outcome not in GOOD)


def _parser(campaign: Campaign) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"The campaign {campaign.name}.")
    parser.add_argument("--cases", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=30, help="of a case; default: %(default)s")
    parser.add_argument("--memory", type=float, default=2, help="GB of a case; default %(default)s")
    parser.add_argument("--folder", type=Path, default=Path("campaigns-out"))
    parser.add_argument("--again", action="store_true", help="judge failures again")
    parser.add_argument("--only", type=int, metavar="INDEX", help="judge one case and show it")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="add the counts to this file")
    parser.add_argument("--json", action="store_true")
    return parser


def _counts(journal: Journal) -> dict[str, int]:
    counts = Counter(outcome.outcome for outcome in journal.outcomes().values())
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def _kind(error: BaseException) -> str:
    """The type of an error and the innermost functions that it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    names = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames]
    return " ".join([type(error).__name__, *names])


def _frames_of_log(log: str) -> list[str]:
    """The innermost functions of the stack that `faulthandler` wrote, outermost first."""
    # Of several threads, the one at work comes last. TVM's own handler may add frames of C, which
    # are written a little differently.
    thread = log[max(log.rfind("Current thread"), log.rfind("\nThread "), 0) :]
    frames = [
        f"{Path(file).name}:{function}"
        for file, function in re.findall(r'^  File "(.+)", line \d+ in (.+)$', thread, re.M)
    ]
    return frames[:_FRAMES][::-1]
