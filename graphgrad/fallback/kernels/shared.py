"""What several kernels of one gradient would compute, and is worth a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from ..graph import Operation, operations, sources
from ..walk import identity, postorder


_MAX_REPEATED_NODES = 48
"""Nodes of expressions up to which maps are computed again for each kernel that reads them. Chosen,
not measured: a pass over memory takes about as long as that many operations on its elements."""


def shared_stages(gradients: Sequence[te.Tensor]) -> list[Operation]:
    """Stages that several gradients depend on, each after those that it reads.

    They are those of a recurrence: the loop backwards in time, and sums such as the products that
    its steps add up, which are evaluated for all times at once; and maps behind long chains of maps.
    What costs no more than a pass over memory is computed again. Gradients without a recurrence
    share nothing.
    """
    order = operations(*gradients)
    if not any(isinstance(op, te.ScanOp) for op in order):
        return []
    needed_by: dict[int, set[int]] = {identity(op): set() for op in order}
    for number, gradient in enumerate(gradients):
        needed_by[identity(gradient.op)].add(number)
    shared: list[Operation] = []
    nodes = _nodes_behind(order)
    # Readers come first, so all kernels that need a stage are known when it is reached.
    for op in reversed(order):
        kernels = needed_by[identity(op)]
        if len(kernels) > 1 and (_is_costly(op) or nodes[identity(op)] > _MAX_REPEATED_NODES):
            # What is behind a shared stage belongs to the kernel of that stage alone.
            kernels = {len(gradients) + len(shared)}
            shared.append(op)
        for tensor in sources(op):
            needed_by[identity(tensor.op)] |= kernels
    return shared[::-1]


def _nodes_behind(order: Sequence[Operation]) -> dict[int, int]:
    """By stage, the nodes of its expressions and of those of the maps that it takes to compute it.

    A map that several read counts once for each, as it does where it is inlined. None stands behind
    a costly stage.
    """
    nodes: dict[int, int] = {}
    for op in order:
        if _is_costly(op) or not isinstance(op, te.ComputeOp):
            nodes[identity(op)] = 0
            continue
        behind = sum(nodes[identity(tensor.op)] for tensor in sources(op))
        own = sum(1 for _ in postorder(*op.body))
        nodes[identity(op)] = min(own + behind, _MAX_REPEATED_NODES + 1)
    return nodes


def _is_costly(op: Operation) -> bool:
    if isinstance(op, te.ComputeOp):
        return isinstance(op.body[0], tirx.Reduce)
    return not isinstance(op, te.PlaceholderOp)
