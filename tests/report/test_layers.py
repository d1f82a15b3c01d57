"""Drawings of graphs: nothing overlaps, edges run down, and what is long is straight."""

import random
from itertools import pairwise

import pytest

from graphgrad.report.layers import BOX, ROW, draw


def boxes_by_row(drawing):
    rows = {}
    for x, y in drawing.places:
        rows.setdefault(y, []).append(x)
    return rows


def check(drawing, edges):
    """Assert what holds of every drawing."""
    rows = boxes_by_row(drawing)
    for row in rows.values():
        row.sort()
        assert all(b - a > BOX[0] for a, b in pairwise(row))
    for x, y in drawing.places:
        assert BOX[0] / 2 <= x <= drawing.width - BOX[0] / 2
        assert BOX[1] / 2 <= y <= drawing.height - BOX[1] / 2
    for (source, target), lanes in zip(edges, drawing.lanes, strict=True):
        top, bottom = drawing.places[source][1], drawing.places[target][1]
        assert top < bottom
        assert len(lanes) == (bottom - top) / ROW - 1
        for index, lane in enumerate(lanes):
            row = rows.get(top + ROW * (index + 1), [])
            assert all(abs(lane - x) > BOX[0] / 2 for x in row)


def test_a_chain_is_straight():
    drawing = draw(4, [(0, 1), (1, 2), (2, 3)])
    assert len({x for x, _ in drawing.places}) == 1
    assert [y for _, y in drawing.places] == [ROW * (n + 0.5) for n in range(4)]


def test_a_shortcut_runs_beside_the_boxes():
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    drawing = draw(4, edges)
    check(drawing, edges)
    assert drawing.lanes[:3] == [[], [], []]
    assert drawing.lanes[3][0] == drawing.lanes[3][1]


def test_many_shortcuts_leave_the_chain_straight():
    edges = [(n, n + 1) for n in range(40)] + [(n, n + 4) for n in range(0, 40, 4)]
    drawing = draw(41, edges)
    check(drawing, edges)
    places = [x for x, _ in drawing.places]
    assert max(places) - min(places) < BOX[0] / 10


def test_edges_from_one_node_share_lanes():
    edges = [(0, 1), (1, 2), (2, 3), (0, 2), (0, 3)]
    drawing = draw(4, edges)
    assert drawing.lanes[3][0] == drawing.lanes[4][0]


def test_branches_do_not_cross():
    # Two chains that the numbers interleave.
    edges = [(0, 2), (1, 3), (2, 5), (3, 4), (5, 6), (4, 7)]
    drawing = draw(8, edges)
    check(drawing, edges)
    first, second = (
        {drawing.places[n][0] for n in chain} for chain in ((0, 2, 5, 6), (1, 3, 4, 7))
    )
    assert max(first) < min(second) or max(second) < min(first)


def test_what_reads_nothing_stands_above_its_first_use():
    drawing = draw(5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert drawing.places[3][1] == drawing.places[2][1]


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed):
    generator = random.Random(seed)
    count = generator.choice([5, 30, 120])
    edges = [
        (source, target)
        for target in range(1, count)
        for source in sorted({generator.randrange(max(0, target - 9), target) for _ in range(2)})
    ]
    check(draw(count, edges), edges)


def test_very_long_edges_have_no_lanes():
    count = 300
    edges = [(n, n + 1) for n in range(count - 1)]
    assert draw(count, [*edges, (0, count - 1)]).lanes[-1] == []


def test_no_graph():
    assert draw(0, []).places == []
