"""The order in which the parts of an expression are evaluated: what decides before its decisions.

A part that several arms of conditionals share is evaluated once, where one of the conditions holds.
If these are evaluated before it, it can use what they were computed from; if they came later, that
would be computed twice, with all the conditions in it, and theirs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterator

from .guarded import all_of
from .walk import Graph, identity, is_conditional


def order_conditions_first(graph: Graph, fragile: Container[int]) -> Graph:
    """Return a graph such that nodes come behind the conditions that protect them.

    Where a condition and what it protects need one another, by way of other conditions, some come
    later all the same. Otherwise the order stays.

    Parameters
    ----------
    graph : Graph
    fragile : container of int
        The identities of nodes that are protected; of these, the ones used more than once matter.
    """
    places = {identity(node): place for place, (node, _) in enumerate(graph)}
    behind = {place: set(deciding) for place, deciding in _deciding(graph, places, fragile)}
    if all(max(deciding) < place for place, deciding in behind.items()):
        return graph
    needed = [{places[identity(part)] for part in parts} for _, parts in graph]
    return [graph[place] for place in _topological_order(needed, behind)]


def _deciding(
    graph: Graph, places: dict[int, int], fragile: Container[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the places of protected nodes, with those of the conditions around any of their uses.

    Conditions that are made of the node itself are left out. Sets of conditions are integers, of
    one bit each.
    """
    uses = Counter(identity(part) for _, parts in graph for part in parts)
    numbers: dict[int, int] = {}
    around, inside = [0] * len(graph), [0] * len(graph)
    for place in reversed(range(len(graph))):
        node, parts = graph[place]
        below = [around[place]] * len(parts)
        if parts and is_conditional(node):
            for arm, wanted in ((1, True), (2, False)):
                for condition, _ in all_of(parts[0], wanted):
                    number = numbers.setdefault(places[identity(condition)], len(numbers))
                    below[arm] |= 1 << number
        within = inside[place] | (1 << numbers[place] if place in numbers else 0)
        for part, outer in zip(parts, below, strict=True):
            around[places[identity(part)]] |= outer
            inside[places[identity(part)]] |= within
        key = identity(node)
        protecting = around[place] & ~within
        if protecting and uses[key] > 1 and key in fragile:
            yield place, [c for c, number in numbers.items() if protecting >> number & 1]


def _topological_order(needed: list[set[int]], behind: dict[int, set[int]]) -> Iterator[int]:
    """Yield places, each behind those needed, and behind others if that can be; else in order."""
    missing = [len(parts) for parts in needed]
    awaited = [len(behind.get(place, ())) for place in range(len(needed))]
    users: list[list[int]] = [[] for _ in needed]
    waiting: list[list[int]] = [[] for _ in needed]
    for place, parts in enumerate(needed):
        for part in parts:
            users[part].append(place)
        for condition in behind.get(place, ()):
            waiting[condition].append(place)
    possible = [place for place, count in enumerate(missing) if not count]
    ready = [place for place in possible if not awaited[place]]
    done: set[int] = set()
    while possible:
        place = heapq.heappop(ready or possible)
        if place in done:
            continue
        done.add(place)
        yield place
        for user in users[place]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(possible, user)
        for other in waiting[place]:
            awaited[other] -= 1
        for other in (*users[place], *waiting[place]):
            if not missing[other] and not awaited[other]:
                heapq.heappush(ready, other)
