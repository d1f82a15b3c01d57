import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.target import target
from graphgrad.ops.tensor_table import PART, Rows, kernel, loop_over_rows

LENGTHS = [
    [1],
    [16],
    [5, 64, 3 * PART + 7, 1, 100, 40000],
    [PART, PART],
    [PART - 1, 2, PART - 1],
    [1] * 70,
]


def buffers(lengths, *dtypes):
    """Return rows of flat buffers."""
    return [
        [tirx.decl_buffer((tirx.const(n, "int64"),), dtype, "x") for dtype in dtypes]
        for n in lengths
    ]


def run(func, *arrays):
    """Call a kernel on copies of arrays; return what they hold afterwards."""
    func = func.with_attr("global_symbol", "main")
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target=target("llvm"))
    tensors = [to_tensor(array.copy()) for array in arrays]
    built["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def doubled(rows):
    """Return the kernel that adds twice the first column to the second one."""

    def element(columns, index, lane):
        first, second = columns
        return tirx.BufferStore(second, second[index] + first[index] * 2.0, [index])

    statements = loop_over_rows(Rows(rows), 16, element)
    return kernel([buffer for row in rows for buffer in row], statements, {})


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}_{sum(lengths)}")
def test_every_element_is_done_once(lengths):
    generator = np.random.default_rng(0)
    arrays = [generator.random(n, dtype="float32") for n in lengths for _ in range(2)]
    found = run(doubled(buffers(lengths, "float32", "float32")), *arrays)
    for first, second, new_first, new_second in zip(
        arrays[::2], arrays[1::2], found[::2], found[1::2], strict=True
    ):
        np.testing.assert_array_equal(new_first, first)
        np.testing.assert_array_equal(new_second, second + first * 2)


def test_columns_of_several_dtypes():
    lengths = [3, PART + 5]
    rows = buffers(lengths, "int64", "float32", "float64")

    def element(columns, index, lane):
        number, single, double = columns
        total = number[index].astype("float64") + single[index].astype("float64")
        return tirx.BufferStore(double, total, [index])

    func = kernel([b for row in rows for b in row], loop_over_rows(Rows(rows), 16, element), {})
    arrays = [
        array
        for n in lengths
        for array in (np.arange(n), np.full(n, 0.5, "float32"), np.zeros(n, "float64"))
    ]
    for n, found in zip(lengths, run(func, *arrays)[2::3], strict=True):
        np.testing.assert_array_equal(found, np.arange(n) + 0.5)


@pytest.mark.parametrize("lengths, parts", [([1], 1), ([PART], 1), ([PART, 1], 2), ([1] * 9, 1)])
def test_equal_parts_of_all_elements(lengths, parts):
    rows = buffers(lengths, "float32", "float32")
    assert Rows(rows).parts == parts
    kinds = []

    def visit(loop):
        kinds.append(int(loop.kind))

    tvm_ffi.structural_walk(doubled(rows).body, (tirx.For, visit))
    assert kinds.count(tirx.ForKind.PARALLEL) == (parts > 1)


def test_the_code_is_as_long_for_many_rows_as_for_one():
    """But for the places in the table: three of each row of two columns."""
    assert statements(50) - statements(1) == 49 * 3


def statements(count):
    """Return how many statements the kernel over some rows has."""
    found = []
    body = doubled(buffers([64] * count, "float32", "float32")).body
    tvm_ffi.structural_walk(body, (tirx.Evaluate, found.append))
    return len(found)


@pytest.mark.parametrize("lanes", [1, 7, 32])
def test_any_number_of_lanes(lanes):
    rows = buffers([100, 3], "float32")
    used = tirx.decl_buffer((tirx.const(lanes, "int64"),), "float32", "used")

    def element(columns, index, lane):
        return tirx.BufferStore(used, used[lane] + columns[0][index], [lane])

    func = kernel([*(row[0] for row in rows), used], loop_over_rows(Rows(rows), lanes, element), {})
    ones = [np.ones(n, "float32") for n in (100, 3, lanes)]
    total = run(func, *ones)[2]
    assert total.sum() == 103 + lanes  # each element once, in the lane that it was given
    rest = 100 % lanes + 3 % lanes
    assert total[0] == 1 + 100 // lanes + 3 // lanes + rest


def test_tensors_of_a_row_have_one_length():
    (long,), (short,) = buffers([8, 7], "float32")
    with pytest.raises(AssertionError):
        Rows([[long, short]])


def test_each_statement_is_done_in_all_lanes_before_the_next():
    """The second one reads the neighboring lane of what the first one has kept.

    In one loop TVM would get a buffer wrong that is accessed nowhere else.
    """
    lanes = 16
    ((source, result),) = buffers([4 * lanes], "float32", "float32")

    def element(columns, index, lane):
        kept = tirx.decl_buffer((tirx.const(lanes, "int64"),), "float32", "kept", scope="local")
        neighbor = tirx.bitwise_xor(lane, tirx.const(1, "int64"))
        return tirx.SeqStmt(
            [
                tirx.AllocBuffer(kept),
                tirx.BufferStore(kept, columns[0][index] * 2.0, [lane]),
                tirx.BufferStore(columns[1], kept[neighbor], [index]),
            ]
        )

    statements = loop_over_rows(Rows([[source, result]]), lanes, element)
    kinds = []

    def visit(loop):
        kinds.append(int(loop.kind))

    tvm_ffi.structural_walk(tirx.SeqStmt(statements), (tirx.For, visit))
    assert kinds.count(tirx.ForKind.VECTORIZED) == 2
    array = np.random.default_rng(0).random(4 * lanes, dtype="float32")
    found = run(kernel([source, result], statements, {}), array, np.zeros_like(array))[1]
    np.testing.assert_array_equal(found.reshape(-1, 2), 2 * array.reshape(-1, 2)[:, ::-1])
