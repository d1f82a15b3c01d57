"""Small results that are computed twice, and large ones."""

import pytest
from tvm import relax

from graphgrad.lower.fusion import share_results
from tests.lower.fusion.programs import called, kernels

op = relax.op
LARGE = ((512, 64), "float32")


def twice(compute):
    return lambda b, x: op.add(b.emit(compute(b, x)), b.emit(compute(b, x)))


def count(build, *types):
    return len(called(share_results(kernels(build, *types))))


def test_a_sum_is_computed_once():
    assert count(twice(lambda b, x: op.sum(x, axis=[0])), LARGE) == 2


def test_what_is_computed_from_shared_results_is_shared():
    assert count(twice(lambda b, x: op.rsqrt(b.emit(op.sum(x, axis=[0])))), LARGE) == 3


def test_items_of_a_shared_tuple_are_shared():
    def build(b, x):
        first, second = (b.emit(op.topk(x, 1, axis=1)) for _ in range(2))
        return op.add(b.emit(first[0]), b.emit(second[0]))

    assert count(build, LARGE) == 2


def test_a_tensor_in_another_shape_is_one_and_so_is_what_is_computed_from_it():
    def sums_of_groups(b, x):
        return op.sum(b.emit(op.reshape(x, (512, 8, 8))), axis=[0, 2])

    assert count(twice(sums_of_groups), LARGE) == 3


def test_a_large_result_is_not_kept_for_later():
    assert count(twice(lambda b, x: op.exp(x)), LARGE) == 3


@pytest.mark.parametrize(
    "first, second, calls", [(True, True, 4), (True, False, 3), (False, True, 3)]
)
def test_results_that_both_leave_stay_two(first, second, calls):
    """What writes to one of them must not be seen in the other."""

    def build(b, x):
        sums = [b.emit(op.sum(x, axis=[0])) for _ in range(2)]
        read = b.emit(op.add(b.emit(op.exp(sums[0])), sums[1]))
        left = [total for total, leaves in zip(sums, (first, second), strict=True) if leaves]
        return relax.Tuple([read, b.emit(relax.Tuple(left))])

    assert count(build, LARGE) == calls


@pytest.mark.parametrize("others", [(op.sum, op.max), (op.sum, lambda x, axis: op.sum(x, [1]))])
def test_different_results_are_not_one(others):
    def build(b, x):
        return relax.Tuple([b.emit(other(x, axis=[0])) for other in others])

    assert count(build, LARGE) == 2


@pytest.mark.parametrize("second, calls", [(2.0, 2), (3.0, 3)])
def test_constants_count(second, calls):
    def build(b, x):
        small = b.emit(op.sum(x, axis=[0]))
        scaled = [b.emit(op.multiply(small, relax.const(c, "float32"))) for c in (2.0, second)]
        return relax.Tuple(scaled) if second != 2.0 else op.add(*scaled)

    assert count(build, LARGE) == calls + (second == 2.0)
