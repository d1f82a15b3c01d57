"""The figures of `kernels.py` as text, and what they come to for each group."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from kernel_entrants import CONTIGUOUS, DERIVED, DIRECT, OURS, REFERENCE
from table import table

_TIMED = (OURS, DIRECT, DERIVED, REFERENCE, CONTIGUOUS)
_SLOW = 0.9  # of torch's speed


def ratio(entry: dict[str, Any], name: str = OURS, to: str = REFERENCE) -> float | None:
    """Return how many times as fast one contender is as another; None if either failed."""
    found = [entry["contenders"].get(contender, {}).get("ms") for contender in (name, to)]
    return found[1] / found[0] if None not in found else None


def summary(cases: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each group and part how graphgrad compares with torch, over its cases.

    In the group of derived gradients it is those that compare, with the hand-written ones.
    """
    found = {}
    for title, entries in _sections(cases):
        pair = (DERIVED, OURS) if title.startswith("derived") else (OURS, REFERENCE)
        rated = [(entry, speed) for entry in entries if (speed := ratio(entry, *pair)) is not None]
        if not rated:
            continue
        worst, slowest = min(rated, key=lambda each: each[1])
        found[title] = {
            "cases": len(entries),
            "failed": len(entries) - len(rated),
            "mean_ratio": statistics.geometric_mean(speed for _, speed in rated),
            "least_ratio": slowest,
            "least_of": f"{worst['name']} {worst['part']}",
            "below_0.9": sum(speed < _SLOW for _, speed in rated),
            "mean_of_peak": statistics.fmean(
                entry["contenders"][pair[0]]["of_peak"] for entry, _ in rated
            ),
        }
    return found


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    machine, settings = result["machine"], result["settings"]
    peaks = [
        f"peak of {threads} thread(s): {peak['gflops']:.0f} GFLOP/s in registers, "
        f"{peak['gb_per_s']:.0f} GB/s copying"
        for threads, peak in result["peaks"].items()
    ]
    return "\n".join(
        [
            table(_header(result), list(_rows(result))),
            "",
            table(_SUMMARY, [_summary_row(*item) for item in result["summary"].items()]),
            "",
            *_errors(result["cases"]),
            *_loaded(result["cases"]),
            "GFLOP/s: of the direct form. torch: with channels_last tensors. ÷: ratios of times.",
            "of peak, of roofline: graphgrad's, of what was measured:",
            *peaks,
            f"{machine['processor']}, {settings['threads']} threads on {machine['cores']} cores, "
            f"Python {machine['python']}",
        ]
    )


def _sections(cases: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the cases of each group and part; one that is in several groups is in each."""
    keys = dict.fromkeys((g, entry["part"]) for entry in cases for g in entry["groups"])
    for group, part in keys:
        yield (
            f"{group} {part}",
            [entry for entry in cases if group in entry["groups"] and entry["part"] == part],
        )


def _timed(result: dict[str, Any]) -> list[str]:
    """Return the names of those that competed, one-thread runs last."""
    present = dict.fromkeys(name for entry in result["cases"] for name in entry["contenders"])
    return [name for name in _TIMED if name in present] + [n for n in present if n not in _TIMED]


_RATIOS = {
    "torch ÷ ours": (OURS, REFERENCE),
    "direct ÷ ours": (OURS, DIRECT),
    "hand ÷ derived": (DERIVED, OURS),
    "1 thread ÷ ours": (OURS, f"{OURS}, 1 thread"),
}
"""Columns of times: the first contender is as many times as fast as the second."""


def _ratios(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the columns whose contenders competed."""
    timed = _timed(result)
    return {title: pair for title, pair in _RATIOS.items() if set(pair) <= set(timed)}


def _header(result: dict[str, Any]) -> list[str]:
    return ["case, GFLOP/s of", *_timed(result), *_ratios(result), "of peak", "of roofline"]


def _rows(result: dict[str, Any]) -> Iterator[list[str]]:
    for entry in result["cases"]:
        contenders = entry["contenders"]
        ours = contenders.get(OURS, {})
        yield [
            f"{entry['name']} {entry['part']}",
            *(_number(contenders.get(name, {}).get("gflops"), ".0f") for name in _timed(result)),
            *(_number(ratio(entry, *pair)) for pair in _ratios(result).values()),
            _number(ours.get("of_peak")),
            _number(ours.get("of_roofline")),
        ]


_SUMMARY = ["group and part", "cases", "mean ratio", "least", "of", "below 0.9", "mean of peak"]


def _summary_row(title: str, found: dict[str, Any]) -> list[str]:
    return [
        title,
        str(found["cases"]),
        _number(found["mean_ratio"]),
        _number(found["least_ratio"]),
        found["least_of"],
        str(found["below_0.9"]),
        _number(found["mean_of_peak"]),
    ]


def _errors(cases: list[dict[str, Any]]) -> Iterator[str]:
    for entry in cases:
        for name, found in entry["contenders"].items():
            if "error" in found:
                yield f"{entry['name']} {entry['part']}: {name} failed: {found['error']}"


def _loaded(cases: list[dict[str, Any]]) -> Iterator[str]:
    loaded = [
        f"{entry['name']} {entry['part']}"
        for entry in cases
        if not all(found.get("quiet", True) for found in entry["contenders"].values())
    ]
    if loaded:
        yield f"NOT QUIET, others kept the machine busy during: {', '.join(loaded)}"


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)
