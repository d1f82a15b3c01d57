"""The page docs/faster.md: for which models and processors graphgrad is the faster choice.

    python bench/steps_page.py [step.json …]

Each file is what `step.py --json` printed. What the page needs of it is recorded in
docs/steps.json, by processor and model, in the place of what was there; the page is made of these
records alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limits import COMPILED, OURS, Reached, reached

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, RECORDS = DOCS / "faster.md", DOCS / "steps.json"

EQUAL = 0.05
"""By how much times may differ that count as equal."""

HEADER = """\
# Which models, which processors

*Written by `python bench/steps_page.py` from what `python bench/step.py --json` printed, recorded
in [steps.json](steps.json); do not edit it.* Only what had the machine to itself is here.

Times of a training step (forward, loss, backward, statistics, SGD with momentum) in milliseconds,
of the same weights and batch, in turns. *PyTorch* is its best of eager and `torch.compile`, with
images in either memory format where that was tried; *ratio* is our time over that. *Of roofline*:
our time over the least that the model's operations and bytes need on that machine; *limit*: what
the ratio would be at that least, below which only convolutions with fewer products, by minimal
filtering, come. *First step*: what we take until the first step is done, cold, over what
`torch.compile` takes, which has to compile as well. *Memory*: the growth of resident memory at its
highest, over the best's.
"""

COLUMNS = """\
| model | batch | ours | PyTorch | its best | ratio | of roofline | limit | first step | memory |
| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |"""


def recorded(results: list[Mapping[str, Any]], records: Mapping[str, Any]) -> dict[str, Any]:
    """The records with those of results in the place of what was there.

    Results of other batches or widths than the models' own are left out.
    """
    known = {processor: dict(models) for processor, models in records.items()}
    for result in results:
        if any(result["settings"].get(name) is not None for name in ("batch", "width")):
            continue
        models = known.setdefault(_processor(result), {})
        for each in filter(lambda each: each.is_quiet, reached(result["models"])):
            models[each.model] = _record(each, result["models"][each.model])
    return {processor: dict(sorted(models.items())) for processor, models in known.items()}


def _processor(result: Mapping[str, Any]) -> str:
    """A processor in words, and what of it was used."""
    settings, machine = result["settings"], result["machine"]
    held = f" held to {settings['isa']}" if settings["isa"] else f" ({result['mcpu']})"
    versions = result["versions"]
    return (
        f"{machine['processor']}{held}, {settings['threads']} of {machine['cores']} cores, "
        f"PyTorch {versions['torch']}"
    )


def _record(found: Reached, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of a model."""
    ours, best = entry["contenders"][OURS], entry["contenders"][found.best]
    roofline = entry["roofline_ms"]
    return {
        "batch": entry["batch"],
        "ms": round(ours["step_ms"], 2),
        "best": found.best,
        "best_ms": round(best["step_ms"], 2),
        "compiled": found.is_compiled,
        "roofline": roofline and round(ours["step_ms"] / roofline, 2),
        "first_step": _first_step(entry["contenders"]),
        "memory": _memory(ours, best),
    }


def _first_step(contenders: Mapping[str, Any]) -> float | None:
    """Our time to the first step over that of torch's compiler; None where that did not compete."""
    seconds = [contenders.get(name, {}).get("first_step_seconds") for name in (OURS, COMPILED)]
    return round(seconds[0] / seconds[1], 2) if all(seconds) else None


def _memory(ours: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """The growth of memory over that of another; None where there is no figure."""
    grown = [each["memory"] and each["memory"]["peak_growth_mb"] for each in (ours, other)]
    return round(grown[0] / grown[1], 2) if all(grown) else None


def page(records: Mapping[str, Any]) -> str:
    """The page of records."""
    return "\n".join([HEADER, *(line for item in records.items() for line in _section(*item))])


def _section(processor: str, models: Mapping[str, Any]) -> Iterator[str]:
    """The lines about a processor."""
    ratios = {name: record["ms"] / record["best_ms"] for name, record in models.items()}
    yield f"## {processor}\n"
    for verdict, lowest, highest in (
        ("graphgrad is faster", 0.0, 1 - EQUAL),
        ("Neither is, by 5 %", 1 - EQUAL, 1 + EQUAL),
        ("PyTorch is faster", 1 + EQUAL, float("inf")),
    ):
        names = [name for name, ratio in ratios.items() if lowest <= ratio < highest]
        yield f"- **{verdict}:** {', '.join(f'`{name}`' for name in names) or 'none measured'}."
    yield f"\n{COLUMNS}"
    for name, record in sorted(models.items(), key=lambda item: ratios[item[0]]):
        yield _row(name, record, ratios[name])
    eager = [name for name, record in models.items() if not record["compiled"]]
    if eager:
        yield f"\nWithout `torch.compile`: {', '.join(eager)}."
    yield ""


def _row(name: str, record: Mapping[str, Any], ratio: float) -> str:
    roofline = record["roofline"]
    least = roofline and ratio / roofline
    figures = [roofline, least, record["first_step"], record["memory"]]
    cells = [
        f"`{name}`",
        str(record["batch"]),
        f"{record['ms']:,.1f}",
        f"{record['best_ms']:,.1f}",
        record["best"].replace("_", " "),
        f"{ratio:.2f}",
        *("" if figure is None else f"{figure:.2f}" for figure in figures),
    ]
    return f"| {' | '.join(cells)} |"


def read_records() -> dict[str, Any]:
    """What was recorded so far."""
    records: dict[str, Any] = json.loads(RECORDS.read_text("utf-8")) if RECORDS.exists() else {}
    return records


def main() -> None:
    """Record results, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="printed by step.py --json")
    results = [json.loads(path.read_text("utf-8")) for path in parser.parse_args().results]
    records = recorded(results, read_records())
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(records), "utf-8")


if __name__ == "__main__":
    main()
