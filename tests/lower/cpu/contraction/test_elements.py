"""Loops over the elements of a tile, and the registers that hold them."""

import math

import pytest
import tvm
from tvm import tirx

from graphgrad.ir.kernel_structure import substitute_values
from graphgrad.lower.cpu.contraction import Plan
from graphgrad.lower.cpu.contraction.elements import each_element, registers_of
from tests.lower.cpu.contraction.stages import Kernel, convolution

STACK = 1024  # bytes from which TVM allocates on the heap


def plan_of(rows, lanes, vectors):
    kernel = Kernel(convolution(1, 40, 16, 64, 1))
    return Plan(
        vector=kernel.axis("k"),
        lanes=lanes,
        vectors=vectors,
        rows=tuple((kernel.axis(name), length) for name, length in rows),
        tasks=(),
        parts=(),
        blocks=(),
        tiles=(),
        terms=(),
    )


@pytest.mark.parametrize("rows", [[], [("h", 13)], [("h", 2), ("v", 7)], [("h", 28)]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("vectors", [1, 2])
def test_registers_are_on_the_stack_and_hold_the_whole_tile(rows, dtype, vectors):
    itemsize = {"float32": 4, "float64": 8}[dtype]
    plan = plan_of(rows, 64 // itemsize, vectors)
    buffers = registers_of(plan, dtype).buffers
    sizes = [math.prod(int(extent) for extent in buffer.shape) for buffer in buffers]
    assert max(sizes) * itemsize < STACK
    assert sum(sizes) == plan.width * math.prod(length for _, length in rows)


@pytest.mark.parametrize("rows", [[], [("h", 13)], [("h", 3), ("v", 5)]], ids=str)
def test_each_element_is_visited_once_and_has_a_register_of_its_own(rows):
    """What is visited is read off the nest, with the numbers of all its loops put in."""
    plan = plan_of(rows, 16, 2)
    registers = registers_of(plan, "float32")
    target = tirx.decl_buffer([*(length for _, length in rows), plan.width], "float32")

    def element(place):
        return tirx.BufferStore(target, place.register, [*place.rows, place.column])

    visits = list(stores(each_element(plan, element, registers=registers)))
    size = plan.width * math.prod(length for _, length in rows)
    assert len(visits) == len({to for to, _ in visits}) == len({of for _, of in visits}) == size


def test_without_registers_there_is_one_nest():
    plan = plan_of([("h", 28)], 16, 1)
    assert len(registers_of(plan, "float32").buffers) > 1
    places = []
    each_element(plan, lambda place: places.append(place) or tirx.Evaluate(0))
    assert [place.register for place in places] == [None]


def stores(node, values=()):
    """Yield the indices of each store of a nest, and what it loads: the buffer, the indices."""
    if isinstance(node, tirx.SeqStmt):
        for part in node.seq:
            yield from stores(part, values)
    elif isinstance(node, tirx.For):
        for trip in range(int(node.extent)):
            yield from stores(node.body, (*values, (node.loop_var, trip)))
    else:
        at = {var: tirx.const(trip, str(var.ty.dtype)) for var, trip in values}
        to, of = (
            tuple(int(simplified(substitute_values(index, at))) for index in access.indices)
            for access in (node, node.value)
        )
        yield to, (str(node.value.source.name), id(node.value.source), of)


def simplified(index):
    return tvm.sym.Analyzer().simplify(index)
