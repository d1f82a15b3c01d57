"""Random kernels by the thousand: raised again, they compute what they were made of.

    python -m tests.fallback.lift.fuzz --programs 5000 --seed 0 [--scheduled] [--stock]

A refusal is counted by its reason; anything wrong is a failure. Of each kind of failure, the first
program is made smaller and printed. The tests in test_random_kernels.py do the same with hundreds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx

from graphgrad.errors import MissingGradientError
from graphgrad.fallback import create_prim_func
from graphgrad.fallback.constants import integer_value
from graphgrad.fallback.graph import operations
from graphgrad.fallback.lift.prim_func import lifted
from tests.fallback.choices import Choices
from tests.fallback.fuzz import outcome, smallest_failure
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import DisagreementError
from tests.fallback.lift.schedules import scheduled
from tests.fallback.programs import Program, random_program
from tests.fallback.source import source

EQUAL, SKIPPED = "equal", "not what TVM lowers rightly"


def check(choices: Choices, tuned: bool = False, stock: bool = False) -> str:
    """Compare a random program with what its kernel is raised to.

    Parameters
    ----------
    choices : Choices
    tuned : bool
        Schedule the kernel at random first.
    stock : bool
        Let TVM make the kernel; programs that it makes wrongly are skipped.
    """
    program = random_program(choices)
    if stock and not _is_plain(program):
        return SKIPPED
    func = kernel(program, stock)
    if tuned:
        func, _ = scheduled(func, choices)
    return compare(program, func)


def kernel(program: Program, stock: bool) -> tirx.PrimFunc:
    """Return a program as a kernel."""
    make = te.create_prim_func if stock else create_prim_func
    return make([*(tensor for tensor, _ in program.known), *program.outputs])


def compare(program: Program, func: tirx.PrimFunc) -> str:
    """Compare a program with what a kernel of it is raised to.

    Raises
    ------
    DisagreementError
    """
    count = len(program.known)
    try:
        found = lifted(func, range(count, count + len(program.outputs)))
    except MissingGradientError as error:
        return f"refused: {_reason(error)}"
    known = [
        (placeholder, array)
        for placeholder, (_, array) in zip(found.parameters, program.known, strict=False)
        if placeholder is not None
    ]
    expected = evaluate(program.outputs, program.known)
    for given, array in zip(evaluate(found.outputs, known), expected, strict=True):
        if not np.allclose(given, array, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise DisagreementError("the kernel is raised to something else")
    return EQUAL


def _reason(error: Exception) -> str:
    """Return a refusal's reason without the names that are in it."""
    text = re.split(";|, by the statement", str(error).split("expressions: ")[-1])[0]
    return re.sub(r"\b[A-Za-z_]+\d[\w.]*(\[[^\]]*\])*", "…", text)[:90]


def _is_plain(program: Program) -> bool:
    """Return whether TVM lowers a program rightly: no `where`, no `init`, nothing empty."""
    for op in operations(*program.outputs):
        for body in op.body if isinstance(op, te.ComputeOp) else []:
            if isinstance(body, tirx.Reduce) and (
                len(body.init)
                or integer_value(body.condition) != 1
                or any(not integer_value(axis.dom.extent) for axis in body.axis)
            ):
                return False
    return len({id(o) for o in program.outputs}) == len(program.outputs)


def main() -> int:
    arguments = _arguments()
    chosen: Any = partial(check, tuned=arguments.scheduled, stock=arguments.stock)
    outcomes: Counter[str] = Counter()
    failures = 0
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        choices = Choices(seed)
        name, error = outcome(chosen, choices)
        outcomes[name] += 1
        failures += error is not None
        if error is not None and outcomes[name] == 1:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            small = smallest_failure(chosen, choices.tape, arguments.tries)
            print(source(random_program(small).outputs), flush=True)
    for name, count in outcomes.most_common():
        print(f"{count:6}  {name}")
    return int(failures > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--scheduled", action="store_true", help="schedule the kernels at random")
    parser.add_argument("--stock", action="store_true", help="let TVM make the kernels")
    parser.add_argument("--tries", type=int, default=60, help="at making a program smaller")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
