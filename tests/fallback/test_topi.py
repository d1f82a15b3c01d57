"""Every function of TVM's topi: its gradient agrees with differences, or is refused for good."""

import numpy as np
import pytest
from tvm import te, topi

import graphgrad as gg
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import SMOOTH, judge, with_heads
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

DEFECTS = {
    "nn.batch_to_space_nd": "Cannot find type info for type_index",
    "nn.conv2d_winograd_weight_transform": "pickle_memoize",
}
"""What TVM says where it cannot build a function."""


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


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_reads_stay_inside_of_tensors(case):
    """A kernel that reads elsewhere may pass all tests, until something else is there."""
    assert not reads_outside(*case.build(), case.arrays())


def reads_outside(outputs, placeholders, arrays):
    """Return whether a result or a gradient is made of what is outside of a tensor: NaN."""
    known = list(zip(placeholders, arrays, strict=True))
    floats = [tensor for tensor in outputs if "float" in str(tensor.dtype)]
    differentiated = [tensor for tensor in placeholders if "float" in str(tensor.dtype)]
    _, backward = with_heads(Program(floats, differentiated, known), np.random.default_rng(0))
    results = evaluate([*floats, *backward.outputs], backward.known)
    return any(np.isnan(result).any() for result in results)


def test_winograd_of_topi_reads_outside():
    """If this fails, TVM pads the data up to whole tiles: note it at the limits in the guide."""
    x, w = te.placeholder((1, 2, 6, 6), "float64"), te.placeholder((2, 2, 3, 3), "float64")
    y = topi.nn.conv2d_winograd_nchw(x, w, 1, 1, 1, "float64")
    assert reads_outside([y], [x, w], [np.ones((1, 2, 6, 6)), np.ones((2, 2, 3, 3))])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.function in NO_FLOATS and case.arguments], ids=str
)
def test_what_has_no_float_path_is_refused_for_good(case):
    outputs, placeholders = case.build()
    with pytest.raises(gg.NotDifferentiableError, match=r"of floats|not float"):
        gg.te_gradient(outputs, placeholders)


BUILD = "from tests.fallback.topi_cases import UNBUILDABLE; UNBUILDABLE['%s']()"


@pytest.mark.parametrize("function", UNBUILDABLE)
def test_what_tvm_cannot_build(function, python):
    """In a process of its own, which TVM may end."""
    done = python.run(BUILD % function)
    assert done.returncode, f"TVM now builds topi.{function}: give it cases"
    said = done.stdout + done.stderr
    assert DEFECTS[function] in said, f"topi.{function} fails of something else"


def test_unique_is_no_function():
    assert not callable(topi.unique), "TVM now has topi.unique: its shape depends on data"
