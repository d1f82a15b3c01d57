"""The lattice solver against enumeration of the whole box."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgrad.fallback.indices.lattice import Form, Solutions, Symbol, hermite, solve


def value(form: Form, known: dict[Symbol, int]) -> int:
    return sum(coefficient * known[symbol] for symbol, coefficient in form.items())


def points(solutions: Solutions, right, low, extents):
    """Run the loop nest as a kernel would; return every point that its guards let pass."""
    trips = [range(-(-extents[loop.unknown] // loop.step)) for loop in solutions.loops]
    found = []
    for counters in itertools.product(*trips):
        known = {Symbol("right", i): r for i, r in enumerate(right)}
        known |= {Symbol("low", i): b for i, b in enumerate(low)}
        known |= {Symbol("loop", i): c for i, c in enumerate(counters)}
        fits = True
        for i, quotient in enumerate(solutions.quotients):
            numerator = value(quotient.numerator, known)
            known[Symbol("quotient", i)] = numerator // quotient.divisor
            fits &= not (quotient.exact and numerator % quotient.divisor)
        fits &= all(value(equation, known) == 0 for equation in solutions.equations)
        unknowns = [value(form, known) for form in solutions.unknowns]
        for loop, counter in zip(solutions.loops, counters, strict=True):
            at = unknowns[loop.unknown] - low[loop.unknown]
            assert not fits or at >= 0, "a loop's unknown needs no lower guard"
            start = value(loop.above, known) % loop.step
            assert at == start + counter * loop.step
        inside = all(b <= u < b + e for u, b, e in zip(unknowns, low, extents, strict=True))
        if fits and inside:
            found.append(tuple(unknowns))
    return found


def enumerated(matrix, low, extents):
    """Return all points of the box by the right-hand side that they give."""
    by_right = {}
    for u in itertools.product(*(range(b, b + e) for b, e in zip(low, extents, strict=True))):
        right = tuple(sum(a * v for a, v in zip(row, u, strict=True)) for row in matrix)
        by_right.setdefault(right, []).append(u)
    return by_right


systems = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.integers(-4, 4), min_size=n, max_size=n), min_size=0, max_size=3),
        st.lists(st.integers(-3, 3), min_size=n, max_size=n),
        st.lists(st.integers(0, 5), min_size=n, max_size=n),
    )
)


@settings(max_examples=400, deadline=None)
@given(systems)
def test_every_solution_occurs_once_and_nothing_else(system):
    matrix, low, extents = system
    by_right = enumerated(matrix, low, extents)
    solutions = solve(matrix, extents)
    neighbors = {
        tuple(r + d for r, d in zip(right, delta, strict=True))
        for right in list(by_right)[:8]
        for delta in itertools.product((-1, 0, 1), repeat=len(matrix))
    }
    for right in neighbors:
        expected = by_right.get(right, [])
        assert sorted(points(solutions, right, low, extents)) == sorted(expected)


@settings(max_examples=200, deadline=None)
@given(systems)
def test_hermite_form_is_the_matrix_times_a_unimodular_one(system):
    matrix, _, extents = system
    n = len(extents)
    reduced, transform, pivots = hermite(matrix, n)
    for row, line in zip(matrix, reduced, strict=True):
        product = [sum(row[k] * transform[k][j] for k in range(n)) for j in range(n)]
        assert product == line
    assert abs(determinant(transform)) == 1
    for column, row in enumerate(pivots):
        assert reduced[row][column] > 0
        assert all(reduced[earlier][column] == 0 for earlier in range(row))
        assert all(reduced[row][later] == 0 for later in range(column + 1, n))
    assert all(line[j] == 0 for line in reduced for j in range(len(pivots), n))


def determinant(matrix) -> int:
    if not matrix:
        return 1
    return sum(
        (-1) ** j * value * determinant([row[:j] + row[j + 1 :] for row in matrix[1:]])
        for j, value in enumerate(matrix[0])
        if value
    )


def test_of_as_many_points_the_smaller_step_is_walked():
    (loop,) = solve([[1, -2]], [12, 6]).loops
    assert (loop.unknown, loop.step) == (1, 1)


def trips(solutions: Solutions, extents) -> int:
    return math.prod(-(-extents[loop.unknown] // loop.step) for loop in solutions.loops)


@pytest.mark.parametrize(
    ("matrix", "extents", "expected"),
    [
        pytest.param([[1]], [5], 1, id="copy"),
        pytest.param([[-1]], [5], 1, id="flip"),
        pytest.param([[2]], [5], 1, id="stride"),
        pytest.param([[1], [1]], [5], 1, id="diagonal"),
        pytest.param([[1, 1]], [30, 3], 3, id="window"),
        pytest.param([[2, 1]], [15, 3], 2, id="strided window"),
        pytest.param([[1, 2]], [30, 3], 3, id="dilated window"),
        pytest.param([[3, 1]], [10, 3], 1, id="windows side by side"),
        pytest.param([[6, 2, 1]], [4, 3, 2], 1, id="flattened"),
        pytest.param([[1, 1], [1, 2]], [5, 5], 1, id="unimodular mix"),
        pytest.param([[0, 1]], [7, 4], 7, id="broadcast"),
        pytest.param([], [3, 4], 12, id="everything is read"),
    ],
)
def test_no_more_points_are_visited_than_there_can_be_solutions(matrix, extents, expected):
    assert trips(solve(matrix, extents), extents) == expected
    most = max(map(len, enumerated(matrix, [0] * len(extents), extents).values()))
    assert trips(solve(matrix, extents), extents) == most
