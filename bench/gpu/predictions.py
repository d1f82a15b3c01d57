"""What was measured beside what was predicted: calls of a step, and properties of the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def furthest(
    measured: list[tuple[str, float]], predicted: list[dict[str, Any]], count: int = 10
) -> list[dict[str, Any]]:
    """The kernels that are furthest from their prediction, by the time of all their calls.

    Parameters
    ----------
    measured : list of (str, float)
        As of `call_times`.
    predicted : list of dict
        What `pack.py` has written of each call: ``name``, ``seconds``, ``is_of_library``.
    count : int

    Raises
    ------
    ValueError
        These are not the calls of one step.
    """
    names = [None if call["is_of_library"] else call["name"] for call in predicted]
    called = [name for name, _ in measured]
    if len(names) != len(called) or any(n not in (None, c) for n, c in zip(names, called)):  # noqa: B905
        raise ValueError("the step makes other calls than those that were predicted")
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for call, (_, seconds) in zip(predicted, measured, strict=True):
        row = rows.setdefault(
            (call["name"], call["seconds"]),
            {"name": call["name"], "calls": 0, "measured_ms": 0.0, "predicted_ms": 0.0},
        )
        row["calls"] += 1
        row["measured_ms"] += 1e3 * seconds
        row["predicted_ms"] += 1e3 * call["seconds"]
    gaps = sorted(rows.values(), key=lambda row: row["predicted_ms"] - row["measured_ms"])
    return gaps[:count]


def differences(true: Mapping[str, Any], assumed: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The properties of a device that are others than was assumed: what they are, and that."""
    others = {name for name in true.keys() & assumed.keys() if true[name] != assumed[name]}
    return {name: [true[name], assumed[name]] for name in sorted(others)}
