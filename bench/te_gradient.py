"""TE autodiff: time to derive gradients, its growth with depth, and how much work they are.

    python bench/te_gradient.py [--json] [--match RE] [--repeats 3]
    python bench/te_gradient.py --page      write docs/te-gradient-measured.md

Times are CPU time, of the derivation alone: nothing is compiled. Run it from the repository: what
it differentiates are the cases of the tests.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import te_counts
from machine import facts, versions
from repository import ROOT
from table import table
from tvm import te

import graphgrad as gg
from graphgrad.errors import GraphGradError
from graphgrad.fallback.backprop import is_float
from tests.fallback.topi_cases import CASES
from tests.fallback.topi_cases.case import Case

PAGE = ROOT / "docs" / "te-gradient-measured.md"
EXTENT = 16  # elements of the tensors that a chain computes on; no time depends on it


def body(depth: int) -> te.Tensor:
    """x·(x·(x·…)) in one stage."""
    x = _input()

    def value(i: Any) -> Any:
        total = x[i]
        for _ in range(depth):
            total = x[i] * total
        return total

    return te.compute((EXTENT,), value, name="body")


def stages(depth: int) -> te.Tensor:
    """A chain of stages, each of which reads the one before."""
    y = _input()
    for number in range(depth):
        y = te.compute((EXTENT,), _reader(lambda i, y: te.tanh(y[i]) * y[i], y), name=f"s{number}")
    return y


def ladder(depth: int) -> te.Tensor:
    """Stages that read the two before: as many paths as there are subsets of the rungs."""
    x = y = _input()
    for number in range(depth):
        step = _reader(lambda i, x, y: x[i] * 0.5 + y[i], x, y)
        x, y = y, te.compute((EXTENT,), step, name=f"s{number}")
    return y


SHAPES: dict[str, tuple[Callable[[int], te.Tensor], tuple[int, ...]]] = {
    "x*(x*(...)) in one body": (body, (125, 250, 500, 1000)),
    "chain of stages": (stages, (250, 500, 1000, 2000)),
    "ladder of stages": (ladder, (250, 500, 1000, 2000)),
}


def _input() -> te.Tensor:
    return te.placeholder((EXTENT,), "float32", name="x")


def _reader(value: Callable[..., Any], *tensors: te.Tensor) -> Callable[[Any], Any]:
    """Return the body of a stage: TVM takes no function with default arguments."""
    return lambda i: value(i, *tensors)


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time of some work."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def measure_growth(name: str, repeats: int, most: int) -> dict[str, Any]:
    """Time the derivation of one shape of graph at several depths, up to `most`."""
    build, depths = SHAPES[name]
    depths = tuple(depth for depth in depths if depth <= most)
    seconds = []
    for depth in depths:
        output = build(depth)
        inputs = [op.output(0) for op in _placeholders(output)]
        seconds.append(cpu_seconds(lambda o=output, i=inputs: gg.te_gradient(o, i), repeats))
    ratios = [b / a for a, b in pairwise(seconds)]
    return {"graph": name, "depths": list(depths), "seconds": seconds, "ratios": ratios}


def _placeholders(output: te.Tensor) -> list[Any]:
    """Return the operations of the inputs that a chain begins with."""
    op = output.op
    while op.input_tensors:
        op = op.input_tensors[0].op
    return [op]


def measure_case(case: Case, repeats: int) -> dict[str, Any] | None:
    """Time the derivation of one call of a topi function; None if it has no float to derive."""
    outputs, placeholders = case.build()
    inputs = [tensor for tensor in placeholders if is_float(tensor.dtype)]
    if not inputs or not any(is_float(output.dtype) for output in outputs):
        return None
    try:
        seconds = cpu_seconds(lambda: gg.te_gradient(outputs, inputs), repeats)
    except GraphGradError as error:
        return {"case": str(case), "refused": str(error)}
    return {"case": str(case), "seconds": seconds}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything whose name matches."""
    matches = re.compile(arguments.match).search
    cases = [measure_case(case, arguments.repeats) for case in CASES if matches(str(case))]
    return {
        "benchmark": "te_gradient",
        "machine": facts(),
        "versions": versions(),
        "repeats": arguments.repeats,
        "topi": [case for case in cases if case is not None],
        "growth": [
            measure_growth(name, arguments.repeats, arguments.depth)
            for name in SHAPES
            if matches(name)
        ],
        "contractions": [
            te_counts.measure(case) for case in te_counts.CONTRACTIONS if matches(case.name)
        ],
        "others": [te_counts.measure_other(name) for name in te_counts.OTHERS if matches(name)],
    }


def derivation_lines(topi: list[dict[str, Any]]) -> list[str]:
    """Return how long the derivations of all cases took, and the slowest."""
    timed = sorted((case for case in topi if "seconds" in case), key=lambda case: -case["seconds"])
    if not timed:
        return []
    seconds = [case["seconds"] for case in timed]
    slowest = ", ".join(f"{case['case']} {1e3 * case['seconds']:.0f} ms" for case in timed[:5])
    return [
        f"{len(timed)} calls of topi functions derived in {sum(seconds):.2f} s, median "
        f"{1e3 * statistics.median(seconds):.1f} ms; {len(topi) - len(timed)} refused.",
        f"Slowest: {slowest}.",
    ]


def growth_rows(growth: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each depth: CPU time, and its ratio to that of half the depth."""
    return [
        [entry["graph"], f"{depth:,}", f"{seconds:.3f}", "" if ratio is None else f"{ratio:.2f}"]
        for entry in growth
        for depth, seconds, ratio in zip(
            entry["depths"], entry["seconds"], [None, *entry["ratios"]], strict=True
        )
    ]


GROWTH_HEADER = ["graph", "depth", "CPU seconds", "per doubling"]


def report(result: dict[str, Any]) -> str:
    """Return the figures as text."""
    return "\n".join(
        [
            *derivation_lines(result["topi"]),
            "",
            table(GROWTH_HEADER, growth_rows(result["growth"])),
            "",
            te_counts.markdown(result["contractions"], result["others"]),
            "",
            _machine(result),
        ]
    )


def page(result: dict[str, Any]) -> str:
    """Return docs/te-gradient-measured.md."""
    growth = [GROWTH_HEADER, ["---", "---:", "---:", "---:"], *growth_rows(result["growth"])]
    formulas = (te_counts.__doc__ or "").split("\n", 2)[2].strip()
    return "\n".join(
        [
            "# Derived gradients, measured",
            "",
            "Written by `python bench/te_gradient.py --page`. Counts are exact and checked by a "
            "test; times are of one machine.",
            "",
            "## Body evaluations",
            "",
            "How often the body of a sum of products is evaluated: its multiply-adds.",
            "",
            formulas,
            "",
            "Of pooling and of reads at positions that depend on data, all stages count: those "
            "that find a saved position, and zero fills.",
            "",
            te_counts.markdown(result["contractions"], result["others"]),
            "",
            "## Time to derive",
            "",
            *derivation_lines(result["topi"]),
            "",
            *(f"| {' | '.join(row)} |" for row in growth),
            "",
            _machine(result),
            "",
        ]
    )


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['processor']}, one thread, Python {machine['python']}; medians of "
        f"{result['repeats']}."
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--page", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--match", default="", metavar="REGEX", help="only what it finds")
    parser.add_argument("--repeats", type=int, default=3, help="timings behind each median")
    parser.add_argument("--depth", type=int, default=2000, help="greatest depth of a graph")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    # The first call in a process also pays for what is loaded lazily.
    gg.te_gradient(body(4), [_input()])
    result = measure(arguments)
    if arguments.page:
        PAGE.write_text(page(result), "utf-8")
    else:
        print(json.dumps(result, indent=1) if arguments.json else report(result))


if __name__ == "__main__":
    main()
