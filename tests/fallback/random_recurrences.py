"""Random programs as the steps of recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from graphgrad.fallback.graph import operations, rewritten
from graphgrad.fallback.indices.index_system import Axis
from graphgrad.fallback.scans.stacks import Stacking
from graphgrad.fallback.walk import tensor_key
from tests.fallback.choices import Choices
from tests.fallback.programs import Program, Value, random_program

TIMES = 4


def random_recurrence(seed: int) -> Program | None:
    """Return a scan whose step is a random program; None if there is none of its shape.

    One input of the program is read off the row before, elements in another order; the others get
    new values at each time.
    """
    program = random_program(Choices(seed))
    output = program.outputs[0]
    shape = [int(extent) for extent in output.shape]
    if 0 in shape or any(str(extent.ty) == "int64" for extent in output.shape):
        return None
    time = Axis(te.var("time", "int32"), tirx.const(0, "int32"), tirx.const(TIMES, "int32"))
    generator = np.random.default_rng(seed)
    state = te.placeholder((TIMES, *shape), "float64", name="state")
    init = te.placeholder((1, *shape), "float64", name="init")
    known: list[Value] = [(init, generator.uniform(-1, 1, (1, *shape)))]
    floats = [init]
    rows = {}
    placeholders = [t for t, _ in program.known if isinstance(t.op, te.PlaceholderOp)]
    values = {tensor_key(tensor): array for tensor, array in program.known}
    for number, tensor in enumerate(placeholders):
        if number == 0 and str(tensor.dtype) == "float64":
            rows[tensor_key(tensor)] = _row_before(state, shape, tensor, time)
            continue
        steps = te.placeholder((TIMES, *tensor.shape), str(tensor.dtype), name=tensor.op.name)
        array = np.stack([values[tensor_key(tensor)]] * TIMES)
        if "float" in str(tensor.dtype):
            array = array * generator.uniform(0.8, 1.0, array.shape)
            floats.append(steps)
        known.append((steps, array))
        rows[tensor_key(tensor)] = _row(steps, tensor, time)
    (result,) = rewritten([output], lambda op: None, rows)
    squashed = te.compute(result.shape, lambda *at: tirx.tanh(result(*at)), name="squashed")
    stages = [op for op in operations(squashed) if not isinstance(op, te.PlaceholderOp)]
    (update,) = Stacking(time).tensors([squashed], stages)
    return Program([te.scan(init, update, state, name="random")], floats, known)


def _row(steps: te.Tensor, like: te.Tensor, time: Axis) -> te.Tensor:
    return te.compute(like.shape, lambda *at: steps(time.var, *at), name=f"{like.op.name}_now")


def _row_before(state: te.Tensor, shape: list[int], like: te.Tensor, time: Axis) -> te.Tensor:
    """Return the row before in the shape of another tensor, repeated as often as it takes."""

    def body(*at: Any) -> Any:
        place = [
            tirx.floormod(sum(at, tirx.const(number, "int32")), extent)
            for number, extent in enumerate(shape)
        ]
        return state(time.var - 1, *place)

    return te.compute(like.shape, body, name="before")
