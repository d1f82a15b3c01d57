"""An order of an expression's nodes in which conditions come before what they protect."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterator

from ..guarded import all_of
from ..walk import Graph, identity, is_conditional


def order_conditions_first(graph: Graph, fragile: Container[int]) -> Graph:
    """A graph such that nodes come behind the conditions that protect them.

    Where a condition and what it protects need one another, by way of other conditions, some come
    later all the same. Otherwise the order stays.

    Parameters
    ----------
    graph : Graph
    fragile : container of int
        The identities of nodes that are protected; of these, the ones used more than once matter.
    """
    positions = {identity(node): position for position, (node, _) in enumerate(graph)}
    behind = {
        position: set(deciding) for position, deciding in _deciding(graph, positions, fragile)
    }
    if all(max(deciding) < position for position, deciding in behind.items()):
        return graph
    needed = [{positions[identity(part)] for part in parts} for _, parts in graph]
    return [graph[position] for position in _topological_order(needed, behind)]


def _deciding(
    graph: Graph, positions: dict[int, int], fragile: Container[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the places of protected nodes, with those of the conditions around any of their uses.

    Conditions that are made of the node itself are left out. Sets of conditions are integers, of
    one bit each.
    """
    uses = Counter(identity(part) for _, parts in graph for part in parts)
    numbers: dict[int, int] = {}
    # The conditions around any use of each node, and those that it is a part of.
    around, inside = [0] * len(graph), [0] * len(graph)
    for position in reversed(range(len(graph))):
        node, parts = graph[position]
        below = [around[position]] * len(parts)
        if parts and is_conditional(node):
            for arm, wanted in ((1, True), (2, False)):
                for condition, _ in all_of(parts[0], wanted):
                    # Below what a variable holds already, the graph ends: that is evaluated.
                    if identity(condition) in positions:
                        number = numbers.setdefault(positions[identity(condition)], len(numbers))
                        below[arm] |= 1 << number
        within = inside[position] | (1 << numbers[position] if position in numbers else 0)
        for part, outer in zip(parts, below, strict=True):
            around[positions[identity(part)]] |= outer
            inside[positions[identity(part)]] |= within
        key = identity(node)
        protecting = around[position] & ~within
        if protecting and uses[key] > 1 and key in fragile:
            yield position, [c for c, number in numbers.items() if protecting >> number & 1]


def _topological_order(needed: list[set[int]], behind: dict[int, set[int]]) -> Iterator[int]:
    """Yield places, each behind those needed, and behind others if that can be; else in order."""
    missing_parts = [len(parts) for parts in needed]
    missing_conditions = [len(behind.get(position, ())) for position in range(len(needed))]
    users: list[list[int]] = [[] for _ in needed]
    waiting: list[list[int]] = [[] for _ in needed]
    for position, parts in enumerate(needed):
        for part in parts:
            users[part].append(position)
        for condition in behind.get(position, ()):
            waiting[condition].append(position)
    # Heaps: of several positions, the first in the old order goes ahead.
    possible = [position for position, count in enumerate(missing_parts) if not count]
    ready = [position for position in possible if not missing_conditions[position]]
    done: set[int] = set()
    while possible:
        # Where conditions need what they protect, the first node that can go ahead does.
        position = heapq.heappop(ready or possible)
        # What is ready is among the possible ones, too, and comes out twice.
        if position in done:
            continue
        done.add(position)
        yield position
        for user in users[position]:
            missing_parts[user] -= 1
            if not missing_parts[user]:
                heapq.heappush(possible, user)
        for follower in waiting[position]:
            missing_conditions[follower] -= 1
        for follower in (*users[position], *waiting[position]):
            if not missing_parts[follower] and not missing_conditions[follower]:
                heapq.heappush(ready, follower)
