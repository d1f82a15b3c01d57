"""Do the tests notice a bug? Plausible ones of one line, each judged by the tests of its path.

    python bench/mutants.py [--match REGEX] [--results FILE] [--smoke] [--json]

Each mutant changes one line of a copy of the repository, and the tests that `tests.map` names for
its file (or those that the list below names, which are quicker) run there until one fails. With
``--smoke`` the smoke tests judge it as well. With ``--results`` a run goes on where one that was
ended left off: FILE holds what is known, as JSON, and is written after each mutant; what nobody
noticed is tried again. The command ends with 1 if a mutant is left that nobody notices. It takes
some ten minutes on two cores, and as long again with ``--smoke``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from machine import facts, versions
from repository import ROOT
from table import table

from tests.map import find_tests


@dataclass(frozen=True)
class Mutant:
    """A bug: in the file `path` of graphgrad, `new` in the place of `old`, which is there once.

    `tests` are arguments of pytest; by default the tests of the path.
    """

    name: str
    path: str
    old: str
    new: str
    tests: str = ""

    def arguments(self) -> list[str]:
        """Return what pytest is asked to run."""
        files = [str(test.relative_to(ROOT)) for test in find_tests(ROOT / "graphgrad" / self.path)]
        return self.tests.split() or files

    def source(self) -> str:
        """Return the source of the file with the bug."""
        before, after = (ROOT / "graphgrad" / self.path).read_text("utf-8").split(self.old)
        return before + self.new + after


RULES = "tests/registry/test_rules.py -k "

MUTANTS = [
    Mutant("rule: wrong sign", "registry/elementwise.py",
           "op.sigmoid(-difference)", "op.sigmoid(difference)", RULES + "log_add_exp"),
    Mutant("rule: ties not shared", "registry/elementwise.py",
           "op.where(op.equal(a, b), 0.5 * ct,", "op.where(op.equal(a, b), ct,",
           "tests/registry/test_kinks.py"),
    Mutant("rule: mask left out", "registry/elementwise.py",
           "op.logical_and(at_zero, op.greater_equal(b, 0.0)), 1.0, a)", "at_zero, a, a)",
           "tests/registry/test_singular.py"),
    Mutant("rule: factor left out", "registry/norm.py",
           "0.5 * slope * r * sum_ct_x_hat", "slope * r * sum_ct_x_hat", RULES + "batch_norm"),
    Mutant("rule: wrong axis", "registry/softmax.py",
           "op.reduce_sum(ct, [attrs.axis], keepdims=True)",
           "op.reduce_sum(ct, [-1], keepdims=True)", RULES + "log_softmax"),
    Mutant("sweep: cotangents replaced, not added", "autodiff/reverse.py",
           "add(self.cotangents.get(expr), cotangent)", "cotangent", "tests/autodiff/test_vjp.py"),
    Mutant("engine: broadcasts not summed", "autodiff/apply.py",
           "op.sum_to(value, primal.shape)", "value", RULES + "subtract"),
    Mutant("donation: a result that is returned twice", "memory/donation.py",
           "or OUTSIDE in shared or len(returned) > 1", "or OUTSIDE in shared",
           "tests/memory/test_donation.py"),
    Mutant("donation: stores that meet", "memory/overwrite.py",
           "and all(a.is_apart_from(b) for a, b in combinations(sites, 2))", ""),
    Mutant("alias: one branch of an If", "memory/alias.py",
           "self.regions.choose(result, *trees)", "self.regions.choose(result, trees[0])"),
    Mutant("fusion: a result with two readers has an epilogue", "lower/kernels/epilogue.py",
           "or len(readers) != 1", "or not readers"),
    Mutant("schedule: epilogue dropped", "lower/cpu/schedule.py",
           "epilogue = next(iter(epilogues), None)", "epilogue = None"),
    Mutant("border: no guard at the end", "lower/cpu/contraction/border.py",
           "for distance in (index, extent - 1 - index)", "for distance in (index,)"),
    Mutant("derived: condition of a piece dropped", "fallback/forms/piecewise.py",
           "[*piece.conditions, compare(atom.a, atom.b)]", "[compare(atom.a, atom.b)]"),
    Mutant("derived: scatter without bounds", "fallback/scatter.py",
           "guards=[*scatter.guards, *bounds]", "guards=[*scatter.guards]"),
    Mutant("ONNX: default of an attribute, pooling", "frontend/converters/pool.py",
           '"count_include_pad", 0', '"count_include_pad", 1'),
    Mutant("ONNX: default of an attribute, activation", "frontend/converters/activation.py",
           'node.attribute("alpha", 0.2)', 'node.attribute("alpha", 1 / 6)'),
    Mutant("export: order of axes not inverted", "runtime/storage.py",
           "np.argsort(order)", "order"),
    Mutant("SGD: momentum before its update", "train/optimizer.py",
           "gradient + self.momentum * velocity",
           'gradient + self.momentum * slots["momentum"]'),
    Mutant("step: statistics not guarded", "train/update.py",
           "all_finite([*checked, *norms, *floats])", "all_finite([*checked, *norms])",
           "tests/train/test_step.py tests/train/test_update.py"),
    Mutant("window: empty micro-batches count", "train/accumulate.py",
           "weight() > 0, product, zero", "weight() > -1, product, zero"),
]  # fmt: skip


def judge(mutant: Mutant, tree: Path, tests: list[str]) -> dict[str, Any]:
    """Run tests on a mutant in a copy of the repository; return who noticed, and what it took."""
    path = tree / "graphgrad" / mutant.path
    original = path.read_text("utf-8")
    path.write_text(mutant.source(), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *tests], cwd=tree, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    path.write_text(original, "utf-8")
    if done.returncode < 0:
        return {"noticed_by": f"the process, ended by signal {-done.returncode}", "tests": 0}
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", done.stdout, re.M)
    counts = dict.fromkeys(("passed", "failed", "error"), 0)
    counts |= {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return {"noticed_by": failed and failed[1], "tests": sum(counts.values())}


def copied(folder: Path) -> Path:
    """Copy the files that git knows of, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def report(results: dict[str, Any], judges: list[str]) -> str:
    """Return a table of the mutants, and of the test that noticed each first."""
    rows = []
    for result in results.values():
        cells = [(result[j] or {}).get("noticed_by", "not run") or "NOBODY" for j in judges]
        rows.append([result["name"], result["path"], str(result["mapped"]["tests"]), *cells])
    return table(["mutant", "file", "tests", *(f"noticed by {j}" for j in judges)], rows)


def main() -> int:
    """Judge the mutants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only mutants whose name matches")
    parser.add_argument("--results", type=Path, help="go on from this file, and write to it")
    parser.add_argument("--smoke", action="store_true", help="also run the smoke tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    file, results = arguments.results, {}
    if file and file.is_file():
        results = json.loads(file.read_text("utf-8"))
    chosen = [mutant for mutant in MUTANTS if re.search(arguments.match, mutant.name)]
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for mutant in chosen:
            facts_of_mutant = asdict(mutant)
            verdict = results.get(mutant.name, {})
            if any(verdict.get(key) != value for key, value in facts_of_mutant.items()):
                verdict = {**facts_of_mutant, "mapped": None, "smoke": None}
            if not (verdict["mapped"] and verdict["mapped"]["noticed_by"]):
                verdict["mapped"] = judge(mutant, tree, mutant.arguments())
            if arguments.smoke:
                verdict["smoke"] = verdict["smoke"] or judge(mutant, tree, ["-m", "smoke"])
            results[mutant.name] = verdict
            if file:
                file.write_text(json.dumps(results, indent=1), "utf-8")
            if sys.stderr.isatty():
                print(f"{mutant.name}: {verdict['mapped']['noticed_by']}", file=sys.stderr)
    shown = {mutant.name: results[mutant.name] for mutant in chosen}
    judges = ["mapped", "smoke"] if arguments.smoke else ["mapped"]
    if arguments.json:
        print(json.dumps({"mutants": shown, "machine": facts(), "versions": versions()}))
    else:
        print(report(shown, judges))
    return int(any(not verdict["mapped"]["noticed_by"] for verdict in shown.values()))


if __name__ == "__main__":
    sys.exit(main())
