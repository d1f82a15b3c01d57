"""What several kernels of one gradient would compute, and is worth a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from ..graph import Operation, operations, outputs_of, sources
from ..walk import identity
from .saved import Work, elements, is_pass, is_worth


def shared_stages(gradients: Sequence[te.Tensor]) -> list[Operation]:
    """Stages that several gradients depend on, each after those that it reads.

    They are those that take much work for what they store, as intermediates of a forward kernel
    that are saved do (see `saved`): a sum, a map of sums. Of gradients with a recurrence it is the
    loop backwards in time, and any sum, such as the products that its steps add up, which are
    evaluated for all times at once. What costs no more than a pass over memory is computed again.
    """
    order = operations(*gradients)
    has_loop = any(isinstance(op, te.ScanOp) for op in order)
    work = Work(set())
    evaluations = {identity(op): work.again(op) for op in order}
    needed_by: dict[int, set[int]] = {identity(op): set() for op in order}
    for number, gradient in enumerate(gradients):
        needed_by[identity(gradient.op)].add(number)
    shared: list[Operation] = []
    # Readers come first, so all kernels that need a stage are known when it is reached.
    for op in reversed(order):
        kernels = needed_by[identity(op)]
        stored = sum(map(elements, outputs_of(op)))
        is_costly = not is_pass(op) if has_loop else is_worth(evaluations[identity(op)], stored)
        if len(kernels) > 1 and is_costly:
            # What is behind a shared stage belongs to the kernel of that stage alone.
            kernels = {len(gradients) + len(shared)}
            shared.append(op)
        for tensor in sources(op):
            needed_by[identity(tensor.op)] |= kernels
    return shared[::-1]
