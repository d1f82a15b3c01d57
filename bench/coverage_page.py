"""The page docs/coverage.md: what has which gradient, and how it was checked.

    python bench/coverage_page.py                      write the page from the registry and records
    python bench/coverage_page.py --run [--match RE]   run and record the checks of rules, first
    python bench/coverage_page.py --nodes nodes.json   record what bench/onnx_nodes.py --json found
    python bench/coverage_page.py --set NAME FILE      record what it found with --set NAME
    python bench/coverage_page.py --topi               derive and record the gradients of topi

What was run is recorded in docs/coverage.json. An op whose rule got other samples since then is
shown as not run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from machine import versions
from topi_coverage import section as topi_section
from topi_coverage import topi_records

from graphgrad.autodiff.vjp import vjp
from graphgrad.check import flat, sample_inputs, sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import compile as compile_module
from graphgrad.registry import Rule, all_rules
from tests.registry.derived_ops import DERIVED_SAMPLES  # on the path by `topi_coverage`

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
RECORDS = ROOT / "docs" / "coverage.json"
TESTS = (
    "tests/registry/test_rules.py",
    "tests/registry/test_torch.py",
    "tests/registry/test_derived.py",
)
HALF_TOLERANCE = 2e-2

REASONS = {
    r"relax\.(builtin|memory|vm)\.": "storage and calls of the virtual machine, after lowering",
    r"relax\.inspect\.": "facts about memory, which are integers",
    r"relax\.grad\.": "TVM's own gradient ops, which graphgrad does not emit",
    r"relax\.(ccl|dist)\.": "several devices: a single process cannot run the op itself",
    r"relax\.call_tir_with_grad": "the gradient that the call names, `docs/custom-gradients.md`",
    r"relax\.call_tir": "derived from the kernel that is called",
    r"relax\.(call_|invoke_|make_closure)": "what is called decides; local functions are inlined",
    r"relax\.(assert_op|print|null_value|size)": "returns no float",
    r"relax\.quantize": "quantized types",
    r"relax\.dequantize": "derived in the scale, in float32",
    r"relax\.wrap_param": "TVM cannot lower the op itself",
    r"relax\.(unique|dynamic_strided_slice)": "the shape of the result depends on data",
    r"relax\.vision\.(all_class|get_valid|multibox|non_max)": "selects boxes by data",
    r"relax\.nn\.attention_var_len": "TVM cannot lower the op itself",
}
"""Why ops have no rule, by the beginning of their names; any other is missing."""


def main() -> int:
    """Run what is asked for and write the page."""
    arguments = _parser().parse_args()
    records = read_records()
    if arguments.run:
        match = re.compile(arguments.match).search
        records["versions"] = versions()
        records["ops"] |= run_checks([rule for rule in _checked_rules() if match(rule.op)])
    if arguments.nodes is not None:
        records["onnx"] = node_counts(json.loads(Path(arguments.nodes).read_text("utf-8")))
    for name, path in arguments.set:
        report = json.loads(Path(path).read_text("utf-8"))
        records.setdefault("onnx_sets", {})[name] = node_counts(report)
    if arguments.topi:
        records["topi"] = topi_records()
    RECORDS.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", "utf-8")
    PAGE.write_text(page(records), "utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="run the checks of rules")
    parser.add_argument("--match", default="", metavar="REGEX", help="only of these ops")
    parser.add_argument("--nodes", metavar="FILE", help="what bench/onnx_nodes.py --json wrote")
    parser.add_argument(
        "--set",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "FILE"),
        help="what bench/onnx_nodes.py --set NAME --json wrote",
    )
    parser.add_argument("--topi", action="store_true", help="derive the gradients of topi")
    return parser


def read_records() -> dict[str, Any]:
    """Return what was recorded, or empty records."""
    if RECORDS.exists():
        return json.loads(RECORDS.read_text("utf-8"))
    return {"versions": {}, "ops": {}, "onnx": None}


def _checked_rules() -> list[Rule]:
    return [rule for rule in all_rules() if rule.origin == "hand" and rule.function is not None]


# Running


def run_checks(rules: Iterable[Rule]) -> dict[str, dict[str, int]]:
    """Run the tests of rules, and each sample in float16; return counts by op."""
    rules = list(rules)
    counts = {rule.op: Counter({"samples": len(rule.samples)}) for rule in rules}
    recorder = _Recorder(counts)
    names = "|".join(re.escape(rule.op) for rule in rules)
    chosen = re.compile(rf"\[({names})[-\]]")
    every = ["-m", "slow or not slow"]
    pytest.main(["-q", "-p", "no:cacheprovider", *every, *TESTS], plugins=[recorder, _Only(chosen)])
    for rule in rules:
        counts[rule.op]["float16"] = isolated(half_samples, rule.op) or 0
    return {op: dict(count) for op, count in counts.items()}


class _Only:
    """Keeps the tests of some ops."""

    def __init__(self, chosen: re.Pattern[str]):
        self._chosen = chosen

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self._chosen.search(item.nodeid)]


class _Recorder:
    """Counts, by op, the tests that passed and what they say they compared."""

    def __init__(self, counts: dict[str, Counter[str]]):
        self._counts = counts

    def pytest_runtest_logreport(self, report: Any) -> None:
        facts = dict(report.user_properties)
        if report.when == "call" and report.passed and facts.get("op") in self._counts:
            self._counts[facts["op"]].update(facts["compared"])


def isolated(function: Callable[[str], int], argument: str) -> int | None:
    """Call a function in a process of its own; None if the process dies."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(function(argument)))
    process.start()
    process.join()
    return None if queue.empty() else queue.get()


def half_samples(op: str) -> int:
    """Return how many samples have, in float16, the gradient that they have in float64."""
    rule = next(rule for rule in _checked_rules() if rule.op == op)
    return sum(_half_agrees(op, sample) for sample in rule.samples)


def _half_agrees(op: str, sample: Any) -> bool:
    inputs = sample_inputs(sample, np.random.default_rng(0), "float16")
    try:
        half, exact = (_gradients(op, sample, inputs, dtype) for dtype in ("float16", "float64"))
    except Exception:  # lowering refuses in many ways
        return False
    return all(
        a.dtype == np.float16
        and np.linalg.norm(a.astype("float64") - b) <= HALF_TOLERANCE * max(np.linalg.norm(b), 1.0)
        for a, b in zip(half, exact, strict=True)
    )


def _gradients(op: str, sample: Any, inputs: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    mod = vjp(sample_module(op, sample, "main", dtype))
    machine = tvm.relax.VirtualMachine(compile_module(mod), tvm.cpu())
    arrays = [a.astype(dtype) if a.dtype == np.float16 else a for a in inputs]
    outputs = flat(machine["main"](*map(to_tensor, arrays)))
    generator = np.random.default_rng(1)
    cotangents = [
        generator.uniform(-1, 1, out.shape).astype("float16").astype(out.dtype)
        for out in outputs
        if out.dtype.kind == "f"
    ]
    return flat(machine["main_vjp"](*map(to_tensor, [*arrays, *cotangents]))[1])


def node_counts(report: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of the ONNX node tests, and every test that is not simply supported."""
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for test in report["tests"]:
        operators[test["operator"]][test["status"]] += 1
    remarks = [
        [test["status"], test["name"], test["reason"]]
        for test in report["tests"]
        if test["status"] in ("missing", "wrong") or "kink" in test["reason"]
    ]
    return {
        "counts": report["counts"],
        "operators": {name: dict(count) for name, count in sorted(operators.items())},
        "remarks": remarks,
    }


# Writing


def page(records: dict[str, Any]) -> str:
    """Return the page: a function of the registry, of TVM's list of ops, and of the records."""
    sections = [
        _introduction(records),
        _rules_section(records),
        _nondifferentiable_section(),
        _missing_section(),
        _nodes_section(records["onnx"]),
    ]
    if "onnx_sets" in records:
        sections.append(_sets_section(records["onnx_sets"]))
    if "topi" in records:
        sections.append(topi_section(records["topi"]))
    return "\n\n".join(sections) + "\n"


def _introduction(records: dict[str, Any]) -> str:
    rules = _checked_rules()
    samples = sum(len(rule.samples) for rule in rules)
    run = sum(len(rule.samples) for rule in rules if _record(records, rule) is not None)
    used = [f"{name} {version}" for name, version in sorted(records["versions"].items())]
    return f"""\
# What has which gradient

Written by `python bench/coverage_page.py`; do not edit.

{len(rules)} rules with {samples} samples, of which {run} were run as they stand, with
{", ".join(used) or "nothing yet"}.

`gg.coverage(model)` and `graphgrad coverage model.onnx` say the same of one model, before anything
runs. `gg.check_grads("relax.nn.conv2d", order=2)` and `graphgrad check model.onnx` repeat the
checks."""


def _rules_section(records: dict[str, Any]) -> str:
    rows = []
    for rule in sorted(_checked_rules(), key=lambda rule: rule.op):
        count = _record(records, rule)
        checks = ["not run"] * 5
        if count is not None:
            names = ("order1", "order2", "torch", "float16", "derived")
            checks = [str(count.get(name, 0) or "") for name in names]
        rows.append([f"`{rule.op}`", rule.kind, str(len(rule.samples)), *checks])
    header = ["op", "kind", "samples", "order 1", "order 2", "PyTorch", "float16", "derived"]
    return f"""\
## Rules

The number of samples (calls of the op with various shapes and attributes) that were found right.
Order 1 and 2: gradient and gradient of the gradient agree with finite differences in float64 to
1e-8. PyTorch: output and gradient equal those of PyTorch in float64 to 1e-9. float16: the gradient
is a float16 and agrees with that in float64 to {HALF_TOLERANCE:.0%}. Derived: with
`rules="derived"`, where no rule is used, the gradient is the same to 1e-9. A kind is explained in
`graphgrad/registry/rule.py`.

{_table(header, rows)}"""


def _record(records: dict[str, Any], rule: Rule) -> dict[str, int] | None:
    """Return what was recorded for a rule, if it had as many samples then."""
    count = records["ops"].get(rule.op)
    return count if count is not None and count["samples"] == len(rule.samples) else None


def _nondifferentiable_section() -> str:
    declared = sorted(r.op for r in all_rules() if r.function is None and r.origin == "hand")
    return f"""\
## Not differentiable

The derivative of these is zero or undefined on open sets, or their results are no floats:

{_wrapped(declared)}"""


def _missing_section() -> str:
    known = {rule.op for rule in all_rules() if rule.origin == "hand"}
    names = sorted(name for name in tvm.ir.Op.list_op_names() if name.startswith("relax."))
    rows = [[f"`{name}`", _reason(name)] for name in names if name not in known]
    return f"""\
## Without a rule

Of TVM's {len(names)} Relax ops, {len(rows)} have neither a rule nor a declaration. Gradients that
are derived agree with finite differences in float64 to 1e-8, to second order.

{_table(["op", "why"], rows)}"""


def _reason(name: str) -> str:
    if name in DERIVED_SAMPLES:
        return f"derived from its tensor expression; {len(DERIVED_SAMPLES[name])} sample(s)"
    return next((why for start, why in REASONS.items() if re.match(start, name)), "missing")


_KINKS = """\
What is missing or wrong, and what agrees only after the test's values were moved by 0.02 to 0.06
("at a kink"). Each of these was looked at:

- Elu, Selu, LeakyRelu, ThresholdedRelu, the border and the elements of GridSample, DeformConv and
  RoiAlign, ties in MaxPool and ReduceMin: the values stand on a kink or a jump, where the gradient
  is a convention (the architecture page lists them).
- GridSample with nearest, Mod at multiples of the divisor: a jump; the gradient is that beside it.
- Acosh at 1, Pow of 0: the differences leave the domain of the function.
- LpNormalization of zeros: the norm has no derivative there; ours is 0.
- SoftmaxCrossEntropyLoss with class weights on 7-dimensional data: rounding of the differences,
  6e-11; the gradient equals the formula to 5e-15."""


def _nodes_section(onnx: dict[str, Any] | None) -> str:
    title = "## ONNX node tests\n\n"
    if onnx is None:
        return title + (
            "Not recorded: run `python bench/onnx_nodes.py --json > nodes.json` and then\n"
            "`python bench/coverage_page.py --nodes nodes.json`."
        )
    statuses = ("supported", "refused", "missing", "wrong")
    rows = [
        [name, *(str(count.get(status, "")) for status in statuses)]
        for name, count in onnx["operators"].items()
    ]
    total = ", ".join(f"{onnx['counts'].get(status, 0)} {status}" for status in statuses)
    remarks = [[status, f"`{name}`", _cell(reason)] for status, name, reason in onnx["remarks"]]
    return (
        f"{title}`python bench/onnx_nodes.py`: {total}. Refused is what has nothing to "
        "differentiate, or a shape that depends on data.\n\n"
        + _table(["operator", *statuses], rows)
        + f"\n\n{_KINKS}\n\n"
        + _table(["status", "test", "reason"], remarks)
    )


def _sets_section(sets: dict[str, Any]) -> str:
    statuses = ("supported", "refused", "missing", "wrong")
    rows = [
        [name, *(str(found["counts"].get(status, 0)) for status in statuses)]
        for name, found in sorted(sets.items())
    ]
    remarks = [
        [name, status, f"`{test}`", _cell(reason)]
        for name, found in sorted(sets.items())
        for status, test, reason in found["remarks"]
    ]
    return (
        "## ONNX tests of small models\n\n`python bench/onnx_nodes.py --set NAME`.\n\n"
        + _table(["set", *statuses], rows)
        + "\n\nWhat is missing or wrong, or agrees beside a kink:\n\n"
        + _table(["set", "status", "test", "reason"], remarks)
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _wrapped(names: list[str]) -> str:
    lines, line = [], ""
    for name in names:
        entry = f"`{name}`, "
        if len(line) + len(entry) > 100:
            lines.append(line.rstrip())
            line = ""
        line += entry
    return "\n".join([*lines, line.rstrip(", ") + "."])


if __name__ == "__main__":
    sys.exit(main())
