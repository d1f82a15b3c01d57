"""Random programs by the thousand: their derived gradients against differences.

    python -m tests.fallback.fuzz --programs 5000 --seed 0 [--order 2] [--compiled | --scheduled]

A refusal is a failure too. Of each kind of failure, the first programs are made smaller and
printed. The tests in test_random_programs.py do the same with a few hundred programs.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm
from tvm import relax, tirx

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.errors import GraphGradError
from graphgrad.fallback import create_prim_func
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cpu import schedule, time_loops
from tests.fallback.choices import Choices, smallest
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import DisagreementError, judge, with_heads
from tests.fallback.programs import Program, random_program
from tests.fallback.source import source
from tests.running import compile_library

_NO_LEAST = {"SMALL": 1, "SMALL_STEP": 1}

REFUSED = "refused"
EQUAL = "equal"


def check_first_order(choices: Choices) -> str:
    """Judge the gradient of the program that some choices lead to."""
    return judge(random_program(choices), np.random.default_rng(0))


def check_second_order(choices: Choices) -> str:
    """Judge the gradient of the gradient."""
    generator = np.random.default_rng(0)
    _, gradient = with_heads(random_program(choices), generator)
    return judge(gradient, generator)


def check_compiled(choices: Choices) -> str:
    """Compare a compiled program and its gradient with the interpreter; outputs begin as NaN."""
    program = random_program(choices)
    _, gradient = with_heads(program, np.random.default_rng(0))
    return _compiled_as_interpreted(program, gradient)


def check_scheduled(choices: Choices) -> str:
    """Compare a program and its gradient, scheduled as if they were large, with the interpreter."""
    program = random_program(choices)
    _, gradient = with_heads(program, np.random.default_rng(0))
    return _compiled_as_interpreted(program, gradient, _run_scheduled)


def check_second_order_compiled(choices: Choices) -> str:
    """Compare a compiled gradient and its own gradient with the interpreter."""
    generator = np.random.default_rng(0)
    _, gradient = with_heads(random_program(choices), generator)
    _, second = with_heads(gradient, generator)
    return _compiled_as_interpreted(gradient, second)


def _compiled_as_interpreted(
    program: Program, gradient: Program, run: Callable[..., list[np.ndarray]] | None = None
) -> str:
    results = [*program.outputs, *gradient.outputs]
    inputs, arrays = zip(*gradient.known, strict=True)
    outputs = (run or _run)(create_prim_func([*inputs, *results]), arrays, results)
    expected = evaluate(results, gradient.known)
    for result, output, value in zip(results, outputs, expected, strict=True):
        if not np.allclose(output, value, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise DisagreementError(f"{result.op.name} is compiled to something else")
    return EQUAL


def _run(
    func: tirx.PrimFunc, arrays: Sequence[np.ndarray], results: Sequence[Any]
) -> list[np.ndarray]:
    """What a function computes, compiled by TVM as it is; outputs begin as NaN."""
    outputs = [
        tvm.runtime.tensor(np.full([int(e) for e in r.shape], np.nan, str(r.dtype)))
        for r in results
    ]
    compile_library(func)(*map(tvm.runtime.tensor, arrays), *outputs)
    return [output.numpy() for output in outputs]


def _run_scheduled(
    func: tirx.PrimFunc, arrays: Sequence[np.ndarray], results: Sequence[Any]
) -> list[np.ndarray]:
    """What a function computes, with a schedule for which no stage is too small."""
    builder = relax.BlockBuilder()
    given = [relax.Var("x", relax.TensorType(a.shape, str(a.dtype))) for a in arrays]
    with builder.function("main", given):
        types = [relax.TensorType([int(e) for e in r.shape], str(r.dtype)) for r in results]
        call = relax.call_tir(builder.add_func(func, "kernel"), given, types)
        builder.emit_func_output(builder.emit(call))
    schedule_kernel = schedule._scheduled

    def scheduled(kernel: Any, unit: Any, winograd: Any, binds: Any, _: int = 1) -> Any:
        return schedule_kernel(kernel, unit, winograd, binds, 1)

    # Where to stop at small stages is no choice of a user's.
    with patch.object(schedule, "_scheduled", scheduled), patch.multiple(time_loops, **_NO_LEAST):
        executable = gg.compile(builder.get())
    outputs = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(to_tensor, arrays))
    return flat(outputs)


def outcome(check: Any, choices: Choices) -> tuple[str, Exception | None]:
    """Return what a check says of a program, and the error if it fails or is refused."""
    try:
        return check(choices), None
    except GraphGradError as error:
        return f"{REFUSED}: {error}"[:100], error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}", error


def smallest_failure(check: Any, tape: Sequence[float], tries: int) -> Choices:
    """Return the choices of a small program that fails as a given one does."""
    kind, _ = outcome(check, Choices(tape=tape))
    found = smallest(tape, lambda other: outcome(check, Choices(tape=other))[0] == kind, tries)
    return Choices(tape=found)


def main() -> int:
    arguments = _arguments()
    check = (
        check_scheduled
        if arguments.scheduled
        else {
            (1, False): check_first_order,
            (2, False): check_second_order,
            (1, True): check_compiled,
            (2, True): check_second_order_compiled,
        }[arguments.order, arguments.compiled]
    )
    outcomes: Counter[str] = Counter()
    failures = 0
    for number in range(arguments.programs):
        choices = Choices(arguments.seed + number)
        name, error = outcome(check, choices)
        outcomes[name] += 1
        if error is not None:
            failures += 1
        if error is not None and outcomes[name] <= arguments.show:
            _tell(
                arguments.seed + number,
                smallest_failure(check, choices.tape, arguments.tries),
                check,
            )
        if sys.stderr.isatty():
            print(f"\r{number + 1} programs, {failures} failures", end="", file=sys.stderr)
    for name, count in outcomes.most_common():
        print(f"{count:6}  {name}")
    return int(failures > 0)


def _tell(seed: int, choices: Choices, check: Any) -> None:
    """Print a program that fails."""
    _, error = outcome(check, choices)
    program = random_program(Choices(tape=choices.tape))
    print(f"seed {seed}: {type(error).__name__}: {error}\n{source(program.outputs)}")
    shapes = [f"{tensor.op.name}{list(array.shape)}" for tensor, array in program.known]
    print(f"by {[tensor.op.name for tensor in program.inputs]}; {', '.join(shapes)}\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--order", type=int, choices=(1, 2), default=1)
    parser.add_argument("--compiled", action="store_true", help="compare with compiled code")
    parser.add_argument("--scheduled", action="store_true", help="and scheduled, whatever its size")
    parser.add_argument("--show", type=int, default=2, help="programs of each kind of failure")
    parser.add_argument("--tries", type=int, default=500, help="at making a program smaller")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
