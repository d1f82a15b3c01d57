"""What several kernels of one gradient would compute, and is worth a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from ..graph import Operation, operations, sources
from ..walk import identity


def shared_stages(gradients: Sequence[te.Tensor]) -> list[Operation]:
    """Stages that several gradients depend on, each after those that it reads.

    They are those of a recurrence: the loop backwards in time, and sums such as the products that
    its steps add up, which are evaluated for all times at once. What costs no more than a pass over
    memory is computed again. Gradients without a recurrence share nothing.
    """
    order = operations(*gradients)
    if not any(isinstance(op, te.ScanOp) for op in order):
        return []
    needed_by: dict[int, set[int]] = {identity(op): set() for op in order}
    for number, gradient in enumerate(gradients):
        needed_by[identity(gradient.op)].add(number)
    shared: list[Operation] = []
    # Readers come first, so all kernels that need a stage are known when it is reached.
    for op in reversed(order):
        kernels = needed_by[identity(op)]
        if len(kernels) > 1 and _is_costly(op):
            # What is behind a shared stage belongs to the kernel of that stage alone.
            kernels = {len(gradients) + len(shared)}
            shared.append(op)
        for tensor in sources(op):
            needed_by[identity(tensor.op)] |= kernels
    return shared[::-1]


def _is_costly(op: Operation) -> bool:
    if isinstance(op, te.ComputeOp):
        return isinstance(op.body[0], tirx.Reduce)
    return not isinstance(op, te.PlaceholderOp)
