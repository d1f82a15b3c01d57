"""The drawing of a graph in layers: where each node stands, and the way that each edge takes.

The method is Sugiyama's. Nodes stand below what they read. Edges that pass layers have a lane in
each, so that none runs under a box. Lanes and boxes are ordered by the means of their neighbors,
then moved towards these as far as the order and the room allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BOX = (210.0, 36.0)
"""Width and height of a node."""

ROW = 62.0
"""From one layer to the next."""

_GAP = 24.0
_LANE = 10.0
_LIGHT = 0.01  # the weight of a lane's place, beside that of a box: lanes give way to chains
_LONGEST = 100  # layers that an edge passes in lanes; longer ones are drawn without, for time
_ROUNDS = 6

Edge = tuple[int, int]


@dataclass(frozen=True)
class Drawing:
    """Where everything stands.

    Attributes
    ----------
    places : list of (float, float)
        The center of each node.
    lanes : list of list of float
        For each edge the x of its lanes, one in each layer that it passes.
    width, height : float
    """

    places: list[tuple[float, float]]
    lanes: list[list[float]]
    width: float
    height: float


def draw(count: int, edges: Sequence[Edge]) -> Drawing:
    """Draw a graph of `count` nodes.

    Parameters
    ----------
    count : int
    edges : sequence of (int, int)
        From the lower number to the higher one: nodes are numbered in an order of execution.
    """
    layer_of = _layers(count, edges)
    slots = _Slots(layer_of)
    chains = [slots.chain(source, target) for source, target in edges]
    for _ in range(_ROUNDS):
        slots.order(slots.above, range(len(slots.rows)))
        slots.order(slots.below, reversed(range(len(slots.rows))))
    x = slots.places()
    left = min((x[slot] - slots.room(slot) for slot in range(len(x))), default=0.0)
    right = max((x[slot] + slots.room(slot) for slot in range(len(x))), default=0.0)
    return Drawing(
        [(round(x[n] - left, 1), layer_of[n] * ROW + ROW / 2) for n in range(count)],
        [[round(x[slot] - left, 1) for slot in chain] for chain in chains],
        right - left,
        len(slots.rows) * ROW,
    )


def _layers(count: int, edges: Iterable[Edge]) -> list[int]:
    """The layer of each node: below all that it reads; what reads nothing, above its first use."""
    sources, targets = defaultdict(list), defaultdict(list)
    for source, target in edges:
        sources[target].append(source)
        targets[source].append(target)
    layer_of = [0] * count
    for node in range(count):
        layer_of[node] = max((layer_of[source] + 1 for source in sources[node]), default=0)
    for node in range(count):
        if not sources[node] and targets[node]:
            layer_of[node] = min(layer_of[target] for target in targets[node]) - 1
    return layer_of


class _Slots:
    """Boxes and lanes by layer; the first slots are the nodes."""

    def __init__(self, layer_of: Sequence[int]):
        self._count = len(layer_of)
        self._layer_of = list(layer_of)
        self._lanes: dict[tuple[int, int], int] = {}
        self.rows: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
        self.above: dict[int, set[int]] = defaultdict(set)
        self.below: dict[int, set[int]] = defaultdict(set)
        for node, layer in enumerate(layer_of):
            self.rows[layer].append(node)

    def chain(self, source: int, target: int) -> list[int]:
        """The lanes of an edge, which edges from the same node share."""
        passed = range(self._layer_of[source] + 1, self._layer_of[target])
        lanes = [self._lane(source, layer) for layer in passed] if len(passed) <= _LONGEST else []
        for upper, lower in zip([source, *lanes], [*lanes, target], strict=True):
            self.above[lower].add(upper)
            self.below[upper].add(lower)
        return lanes

    def _lane(self, source: int, layer: int) -> int:
        """The lane of a node's edges in a layer."""
        if (source, layer) not in self._lanes:
            lane = self._lanes[source, layer] = self._count + len(self._lanes)
            self.rows[layer].append(lane)
        return self._lanes[source, layer]

    def order(self, neighbors: dict[int, set[int]], layers: Iterable[int]) -> None:
        """Order the slots of each layer by the mean position of their neighbors on one side."""
        position = {slot: index for row in self.rows for index, slot in enumerate(row)}
        for layer in layers:
            row = self.rows[layer]
            row.sort(key=lambda slot: _mean(position, neighbors[slot], position[slot]))
            position.update((slot, index) for index, slot in enumerate(row))

    def room(self, slot: int) -> float:
        """Half of the width that a slot needs."""
        return (BOX[0] + _GAP) / 2 if slot < self._count else _LANE

    def places(self) -> list[float]:
        """The x of each slot."""
        x = dict.fromkeys(range(self._count + len(self._lanes)), 0.0)
        for row in self.rows:
            self._spread(row, x, x)
        # Downwards last, so that what follows one node stands right below it.
        for _ in range(_ROUNDS):
            for row in reversed(self.rows):
                self._spread(row, self._means(row, self.below, x), x)
            for row in self.rows:
                self._spread(row, self._means(row, self.above, x), x)
        return list(x.values())

    def _means(
        self, row: Iterable[int], neighbors: dict[int, set[int]], x: dict[int, float]
    ) -> dict[int, float]:
        """Where the slots of a row would stand if there were room: in the middle of neighbors.

        Of boxes, if there are any: else each shortcut would pull what follows it to its side.
        """
        boxes = {slot: {near for near in neighbors[slot] if near < self._count} for slot in row}
        return {slot: _mean(x, boxes[slot] or neighbors[slot], x[slot]) for slot in row}

    def _spread(self, row: Sequence[int], wanted: dict[int, float], x: dict[int, float]) -> None:
        """Put a row as near to where it is wanted as order and room allow, by least squares."""
        offset, offsets = 0.0, []
        for before, slot in zip([None, *row], row, strict=False):
            offset += 0.0 if before is None else self.room(before) + self.room(slot)
            offsets.append(offset)
        # Without offsets it is an isotonic regression: groups that would cross are pooled.
        pools: list[tuple[float, float, int]] = []  # mean, weight, slots
        for slot, start in zip(row, offsets, strict=True):
            mean, size = wanted[slot] - start, 1
            weight = 1.0 if slot < self._count else _LIGHT
            while pools and pools[-1][0] > mean:
                other, other_weight, other_size = pools.pop()
                mean = (mean * weight + other * other_weight) / (weight + other_weight)
                weight, size = weight + other_weight, size + other_size
            pools.append((mean, weight, size))
        means = [mean for mean, _, size in pools for _ in range(size)]
        x.update(zip(row, map(sum, zip(means, offsets, strict=True)), strict=True))


def _mean(position: dict[int, float] | dict[int, int], slots: set[int], default: float) -> float:
    """The mean position of slots; the default if there are none."""
    return sum(position[slot] for slot in slots) / len(slots) if slots else default
