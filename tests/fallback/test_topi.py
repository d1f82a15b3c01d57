"""Every function of TVM's topi: its gradient agrees with differences, or is refused for good."""

import multiprocessing
import os

import numpy as np
import pytest

import graphgrad as gg
from tests.fallback.judge import SMOOTH, judge
from tests.fallback.programs import Program
from tests.fallback.topi_cases import CASES, NO_FLOATS, REASONS, UNBUILDABLE

DERIVED = [case for case in CASES if case.function not in REASONS]
INTERPRETED = {
    "image.grid_sample: reflection",
    "strided_set",
    "vision.roi_align_nchw",
    "vision.roi_align_nchw: max",
    "vision.roi_pool_nchw",
}
"""What takes TVM long to compile."""


def test_all_functions_are_here():
    assert len({case.function for case in CASES} | set(REASONS)) == 194


@pytest.mark.parametrize(
    "case", [case for case in DERIVED if str(case) not in INTERPRETED], ids=str
)
def test_gradient_agrees_with_differences_compiled(case):
    gg.check_grads(case.build(), case.arrays())


@pytest.mark.parametrize("case", [case for case in DERIVED if str(case) in INTERPRETED], ids=str)
def test_gradient_agrees_with_differences_interpreted(case):
    outputs, placeholders = case.build()
    known = list(zip(placeholders, case.arrays(), strict=True))
    program = Program(outputs, [t for t in placeholders if "float" in str(t.dtype)], known)
    assert judge(program, np.random.default_rng(0)) == SMOOTH


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.function in NO_FLOATS and case.arguments], ids=str
)
def test_what_has_no_float_path_is_refused_for_good(case):
    outputs, placeholders = case.build()
    with pytest.raises(gg.NotDifferentiableError, match=r"of floats|not float"):
        gg.te_gradient(outputs, placeholders)


def quietly(build):
    """Call a function without a word of what it says."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    build()


@pytest.mark.parametrize("function", UNBUILDABLE)
def test_what_tvm_cannot_build(function):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=quietly, args=(UNBUILDABLE[function],))
    process.start()
    process.join()
    assert process.exitcode != 0, f"TVM now builds topi.{function}: give it cases"


def test_unique_is_no_function():
    from tvm import topi

    assert not callable(topi.unique), "TVM now has topi.unique: its shape depends on data"
