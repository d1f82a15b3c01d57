"""The order of a program's steps: what frees memory runs as soon as it can.

Gradients of weights free a cotangent and an activation, but are emitted, or fused, behind steps
that do not need them.
"""

from __future__ import annotations

from collections import defaultdict

from .rematerialize import Step


def freeing_first(sizes: list[int], steps: list[Step]) -> list[int]:
    """An order of steps in which pure ones that free more than they take run early.

    Whatever reads or writes a tensor stays in order with what writes it; steps that are not pure
    stay in order among themselves.

    Parameters
    ----------
    sizes : list of int
        As of `Program`.
    steps : list of Step

    Returns
    -------
    list of int
        Positions in `steps`.
    """
    followers, waiting = _dependencies(steps)
    users: dict[int, list[int]] = defaultdict(list)
    for position, step in enumerate(steps):
        for tensor in step.tensors:
            users[tensor].append(position)
    uses_left = {tensor: len(positions) for tensor, positions in users.items()}
    is_live: set[int] = set()
    order: dict[int, None] = {}

    def frees(position: int) -> bool:
        """Whether fewer bytes are in use after a step than before."""
        tensors = steps[position].tensors
        freed = sum(sizes[t] for t in tensors if uses_left[t] == 1)
        return freed > sum(sizes[t] for t in tensors - is_live)

    def run(position: int) -> list[int]:
        """Put a step into the order; returns those that may be worth running next."""
        order[position] = None
        for follower in followers[position]:
            waiting[follower] -= 1
        tensors = steps[position].tensors
        is_live.update(tensors)
        for tensor in tensors:
            uses_left[tensor] -= 1
        return [p for t in tensors if sizes[t] for p in users[t] if p not in order]

    for position in range(len(steps)):
        if position in order:
            continue
        candidates = run(position)
        while candidates:
            candidate = min(candidates)
            candidates.remove(candidate)
            is_next = candidate not in order and not waiting[candidate]
            if is_next and steps[candidate].is_pure and frees(candidate):
                candidates += run(candidate)
    return list(order)


def _dependencies(steps: list[Step]) -> tuple[list[list[int]], list[int]]:
    """For each step, those that must follow it; and how many it must follow itself."""
    followers: list[list[int]] = [[] for _ in steps]
    waiting = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    last_effect = -1
    for position, step in enumerate(steps):
        earlier = {writer[tensor] for tensor in step.tensors if tensor in writer}
        earlier.update(reader for tensor in step.writes for reader in readers[tensor])
        if not step.is_pure:
            earlier.add(last_effect)
            last_effect = position
        for tensor in step.reads:
            readers[tensor].append(position)
        for tensor in step.writes:
            writer[tensor], readers[tensor] = position, []
        earlier.discard(-1)
        waiting.append(len(earlier))
        for other in earlier:
            followers[other].append(position)
    return followers, waiting
