"""TVM's own gradient tests, run on graphgrad's pass and rules.

    python bench/tvm_gradient_tests.py TVM_SOURCE_TREE [--json]

`TVM_SOURCE_TREE` is a checkout of apache/tvm at the version that is installed. Its tests of the
gradient pass, of the gradients of ops, of checkpoints and of registered TE gradients are run as
they are, but for one conversion of a dtype that the released wheel cannot make; once on TVM's own
pass, and once with `tvm_gradient_plugin`, which says what is put in its place.

identical       the adjoint is the expected one, op for op, or the test compares numbers and passes
equal in value  the adjoint is written in other ops, and gives the same numbers
failed          with the reason
stock fails     how many of the tests TVM's own pass fails
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from machine import facts, versions
from table import table

FILES = (
    "test_transform_gradient",
    "test_transform_gradient_numeric",
    "test_transform_gradient_checkpoint",
    "test_transform_gradient_te_register",
    "test_op_gradient_numeric",
)
EQUAL_IN_VALUE = "equal in value"
STATUSES = ("identical", EQUAL_IN_VALUE, "failed")


def main() -> int:
    """Run the tests and print what came of them; return 2 if the tree has none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, metavar="TVM_SOURCE_TREE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.tree / "tests/python/relax"
    missing = [name for name in FILES if not (folder / f"{name}.py").is_file()]
    if missing:
        print(f"{folder} has no {', '.join(missing)}: give a checkout of TVM", file=sys.stderr)
        return 2
    stock = {(o["file"], o["test"]): o["status"] for o in _run(folder, [])}
    outcomes = _run(folder, ["-p", "tvm_gradient_plugin"])
    for outcome in outcomes:
        outcome["stock"] = stock.get((outcome["file"], outcome["test"]), "failed")
    if arguments.json:
        print(json.dumps({"tests": outcomes, "machine": facts(), "versions": versions()}))
    else:
        _print(outcomes)
    return 0


def _run(folder: Path, plugin: list[str]) -> list[dict[str, str]]:
    """Run the tests in a process of its own, and read what pytest says of each."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.xml"
        files = [Path(scratch) / f"{name}.py" for name in FILES]
        for file in files:  # away from the tree, whose own pytest settings need all of TVM
            text = (folder / file.name).read_text()
            file.write_text(text.replace(".astype(out_ty.dtype)", ".astype(str(out_ty.dtype))"))
        command = [sys.executable, "-m", "pytest", "-q", *plugin]
        options = ["-p", "no:cacheprovider", "--rootdir", scratch, f"--junitxml={results}"]
        subprocess.run(
            [*command, *options, *map(str, files)],
            check=False,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        return [_outcome(case) for case in ElementTree.parse(results).iter("testcase")]


def _outcome(case: Any) -> dict[str, str]:
    problem = case.find("failure") if case.find("failure") is not None else case.find("error")
    properties = {p.get("name") for p in case.iter("property")}
    status = EQUAL_IN_VALUE if EQUAL_IN_VALUE in properties else "identical"
    reason = ""
    if problem is not None:
        status, reason = "failed", " ".join((problem.get("message") or "").split())[:300]
    file = case.get("classname", "").rsplit(".", 1)[-1]
    return {"file": file, "test": case.get("name", ""), "status": status, "reason": reason}


def _print(outcomes: list[dict[str, str]]) -> None:
    files: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        files.setdefault(outcome["file"], Counter())[outcome["status"]] += 1
        files[outcome["file"]]["stock fails"] += outcome["stock"] == "failed"
    columns = [*STATUSES, "stock fails"]
    rows = [[name, *(str(counts[s]) for s in columns)] for name, counts in files.items()]
    print(table(["file", *columns], rows))
    for outcome in outcomes:
        if outcome["reason"]:
            print(f"failed  {outcome['file']}::{outcome['test']}: {outcome['reason']}")


if __name__ == "__main__":
    sys.exit(main())
