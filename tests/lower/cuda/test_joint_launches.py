"""Launches that do not depend on each other, as one."""

from functools import reduce

import pytest
from tvm import te, tirx, topi

from tests.labels import label
from tests.lower.cuda.running import run
from tests.lower.kernel_programs import tensor

SHAPES = ((400, 100), (7, 3, 3, 3), (70,), (64, 64, 3, 3), (4090,))


def launches(result):
    return result.text.count('thread="blockIdx.x"')


def totals(tensors):
    """The sum of the sums of tensors: a reduction of each, and a map of the results."""
    sums = [topi.sum(x, list(range(len(x.shape)))) for x in tensors]
    return te.compute((), lambda: reduce(lambda a, b: a + b, (s() for s in sums)), name="total")


def test_many_tensors_are_reduced_at_once():
    tensors = [tensor(*shape) for shape in SHAPES]
    result = run(tensors, [totals(tensors)])
    result.agree()
    # Parts of the long ones beside the short ones, what is left of the long ones, and the total.
    assert launches(result) == 3


def test_many_tensors_of_a_few_elements():
    tensors = [tensor(n) for n in (1, 5, 31)]
    result = run(tensors, [totals(tensors)])
    result.agree()
    assert launches(result) == 2


@pytest.mark.parametrize("dtype", ["float64", "float32"], ids=label)
def test_a_result_that_may_overwrite_an_argument_has_a_launch_of_its_own(dtype):
    x, y = tensor(40), tensor(50)
    # Only float32 results have the type of an argument.
    doubled = [topi.cast(topi.add(t, t), dtype) for t in (x, y)]
    result = run([x, y], doubled)
    result.agree()
    assert launches(result) == (2 if dtype == "float32" else 1)


def test_what_depends_on_another_comes_later():
    x = tensor(50, 60)
    total = topi.sum(x, 1)
    scaled = te.compute((50,), lambda i: tirx.exp(total(i)), name="scaled")
    shifted = te.compute((50,), lambda i: total(i) * 2 + scaled(i), name="shifted")
    run([x], [total, scaled, shifted]).agree()
