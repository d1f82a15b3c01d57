"""Choices by remainders of a place read in steps of one, in vectors, and no more than they may."""

import pytest
from tvm import te, tirx

from graphgrad.ir.kernel_structure import stages, stride
from graphgrad.lower.cpu.plain_indices import simplify_indices
from graphgrad.lower.cpu.residue_indices import residue_of
from tests.lower.kernel_programs import run, tensor

J = tirx.Var("j", "int64")
INDEX = tirx.decl_buffer((), "int64", "index")


def equals(a, number):
    return tirx.EQ(a, tirx.const(number, str(a.ty)))


def differs(a, number):
    return tirx.NE(a, tirx.const(number, str(a.ty)))


@pytest.mark.parametrize(
    "condition, residue",
    [
        (equals(J % 2, 0), (2, 0)),
        (equals((J + 1) % 2, 0), (2, 1)),
        (differs(J % 2, 0), (2, 1)),
        (tirx.const(0, "int64") < J % 2, (2, 1)),
        (equals((J + 4) % 3, 2), (3, 1)),
        (differs(J % 3, 0), None),
        (equals(J * 2 % 3, 0), None),
        (equals(J // 2, 0), None),
        (J < 2, None),
        (equals(INDEX[()] % 2, 0), None),
    ],
)
def test_which_remainder_a_condition_asks_for(condition, residue):
    told = residue_of(condition)
    assert (None if told is None else told[1:]) == residue
    assert told is None or told[0].same_as(J)


def lifted(condition, chosen, otherwise):
    """Return how far the reads of a choice move, by a place in rows; both sides also add."""
    x, y = tensor(64, 512), tensor(64, 512, name="y")

    def element(i, j):
        sides = [side(x, i, j) + y[i, j] for side in (chosen, otherwise)]
        return te.if_then_else(condition(j), *sides)

    out = te.compute(x.shape, element)
    stage = stages(simplify_indices(te.create_prim_func([x, y, out])))[-1]
    runs = run([x, y], [out])
    runs.agree()
    return [stride(load, stage.axes[-1].var) for load in stage.loads], runs


LIFTINGS = {
    "even": (lambda j: equals(j % 2, 0), lambda x, i, j: x[i, j // 2 * 2 + 1] * x[i, j]),
    "odd": (
        lambda j: tirx.all(equals((j + 1) % 2, 0), j >= 1),
        lambda x, i, j: x[i, (j - 1) // 2 * 2],
    ),
    "not even": (lambda j: differs(j % 2, 0), lambda x, i, j: x[i, j // 2 * 2]),
    "of four": (
        lambda j: tirx.all(equals(j % 4, 3), j < 500),
        lambda x, i, j: x[i, (j + 1) // 4 * 4 + 2],
    ),
}


@pytest.mark.parametrize("name", LIFTINGS)
def test_a_choice_by_remainders_reads_in_steps_of_one(name):
    """Rows end in front of an unmapped page."""
    condition, chosen = LIFTINGS[name]
    steps, runs = lifted(condition, chosen, lambda x, i, j: x[i, j])
    assert set(steps) == {1}
    assert 16 in runs.vectors


@pytest.mark.parametrize(
    "chosen",
    [
        lambda x, i, j: x[i, te.min(j // 2 + 1, 255) * 2],
        lambda x, i, j: x[i, te.max(j // 2 * 2 - 1, 1)],
    ],
    ids=["mirrored at the end", "mirrored at the beginning"],
)
def test_borders_of_a_choice_by_remainders(chosen):
    _, runs = lifted(lambda j: equals(j % 2, 0), chosen, lambda x, i, j: x[i, j // 2 * 2])
    assert 16 in runs.vectors


def test_what_a_remainder_does_not_tell_stays():
    steps, _ = lifted(
        lambda j: equals(j % 2, 0), lambda x, i, j: x[i, j // 4 * 4], lambda x, i, j: x[i, j // 3]
    )
    assert None in steps
