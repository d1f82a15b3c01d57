"""What form the gradient of each topi function has.

`coverage_page.py --topi` records this and writes it down in docs/coverage.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import te
from tvm.ir import prim

import graphgrad as gg
from graphgrad.fallback.graph import operations
from graphgrad.fallback.keyed import keyed_of
from graphgrad.fallback.kinds import Kind, kind_of

# The cases belong to the tests, which import them from the folder of the repository.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.fallback.topi_cases import CATEGORIES, REASONS, Case

_FORMS = {
    Kind.RESIDUE_CLASS: "residue classes",
    Kind.CONTRACTION: "contraction",
    Kind.REDUCE: "gather",
    Kind.SCATTER: "scatter",
}
"""What the kinds of derived stages that do the work are called; maps, pads and merges beside
them are not."""


def forms(case: Case) -> list[list[str]]:
    """Return, for each float argument of a call, the forms of the stages of its gradient."""
    outputs, placeholders = case.build()
    wrt = [tensor for tensor in placeholders if "float" in str(tensor.dtype)]
    forward = {op.__chandle__() for op in operations(*outputs)}
    heads = [
        te.placeholder(tensor.shape, str(tensor.dtype)) if "float" in str(tensor.dtype) else None
        for tensor in outputs
    ]
    gradients = gg.te_gradient(outputs, wrt, heads)
    return [_forms(gradient, forward) for gradient in gradients]


def _forms(gradient: te.Tensor, forward: set[int]) -> list[str]:
    stages = [op for op in operations(gradient) if op.__chandle__() not in forward]
    kinds = {kind_of(op) for op in stages}
    found = [name for kind, name in _FORMS.items() if kind in kinds]
    if any(isinstance(op, te.ScanOp) or keyed_of(op) for op in stages):
        found.append("scan")
    return found or ["zero" if _is_zero(gradient) else "map"]


def _is_zero(gradient: te.Tensor) -> bool:
    body = gradient.op.body[0] if isinstance(gradient.op, te.ComputeOp) else None
    return isinstance(body, prim.FloatImm) and float(body.value) == 0.0


def topi_records() -> dict[str, Any]:
    """Return, by category and function, the number of calls and the forms of the gradients."""
    return {
        category: _of_category([case for case in cases if case.function not in REASONS])
        for category, cases in CATEGORIES.items()
    }


def _of_category(cases: Sequence[Case]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in cases:
        record = found.setdefault(case.function, {"calls": 0, "forms": []})
        record["calls"] += 1
        for number, names in enumerate(forms(case)):
            if number == len(record["forms"]):
                record["forms"].append([])
            merged = {*record["forms"][number], *names}
            for trivial in ("zero", "map"):
                merged = merged - {trivial} or merged
            record["forms"][number] = sorted(merged)
    return found


def section(records: dict[str, Any]) -> str:
    """Return the part of the page about topi."""
    derived = {name for functions in records.values() for name in functions}
    total = len(derived) + len(REASONS)
    counts = ", ".join(
        f"{sum(why == reason for why in REASONS.values())} {reason}"
        for reason in dict.fromkeys(REASONS.values())
    )
    rows = [
        f"| `{name}` | {category} | {record['calls']} | "
        + "; ".join(" + ".join(names) for names in record["forms"])
        + " |"
        for category in CATEGORIES
        for name, record in sorted(records[category].items())
    ]
    refused = [f"| `{name}` | {why} |" for name, why in sorted(REASONS.items())]
    return f"""\
## topi functions

{len(derived)} of {total} derived and checked against finite differences, {len(REASONS)} refused:
{counts}.

The calls are those of `tests/fallback/topi_cases`, which `tests/fallback/test_topi.py` checks. The
gradient of each float argument is a *map* (one element from one), a *gather* (a sum over what read
the element), a *contraction* (a sum of products, in the form schedules know), *residue classes*
(contractions by residues of a stride), a *scatter* (added up where the forward pass read), a *scan*
(a loop over time, or over updates of which each finds what others have left) or *zero*.

| function | category | calls | gradients |
| --- | --- | --- | --- |
{chr(10).join(rows)}

| refused | why |
| --- | --- |
{chr(10).join(refused)}"""
