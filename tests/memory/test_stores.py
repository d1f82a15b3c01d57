"""Which parameters a kernel stores to, where it has only their addresses."""

import pytest
from tvm import tirx

from graphgrad.ir.loops import block, index, store, variable
from graphgrad.memory.stores import stored_parameters
from graphgrad.ops.tensor_table import Rows, kernel, loop_over_rows


def rows_of(lengths, columns):
    return [
        [tirx.decl_buffer((length,), "float32", f"row{i}_{j}") for j in range(columns)]
        for i, length in enumerate(lengths)
    ]


def sum_of_two(buffers, at, lane):
    first, second = (tirx.BufferLoad(buffer, [at]) for buffer in buffers[:2])
    return tirx.BufferStore(buffers[-1], first + second, [at])


@pytest.mark.parametrize("lengths", [[32], [256, 20, 70]])
@pytest.mark.parametrize("columns", [2, 3, 5])
def test_a_table_of_rows_is_stored_to_in_its_columns(lengths, columns):
    rows = rows_of(lengths, columns)
    params = [buffer for row in rows for buffer in row]
    function = kernel(params, loop_over_rows(Rows(rows), 16, sum_of_two), {})
    last = {columns * (row + 1) - 1 for row in range(len(lengths))}
    assert stored_parameters(function) == last


def test_two_tables_are_told_apart():
    first, second = rows_of([32, 64], 3), rows_of([16, 8, 8], 2)
    statements = [
        statement
        for rows in (first, second)
        for statement in loop_over_rows(Rows(rows), 8, sum_of_two)
    ]
    params = [buffer for rows in (first, second) for row in rows for buffer in row]
    assert stored_parameters(kernel(params, statements, {})) == {2, 5, 7, 9, 11}


@pytest.mark.parametrize(
    ("entry", "stored"),
    [
        (lambda row: tirx.const(1, "int32"), {1}),
        (lambda row: row, {0, 1, 2}),
        (lambda row: row * 2, {0, 2}),
        (lambda row: row * 2 + 1, {1}),
        (lambda row: row * row, {0, 1, 2}),  # not known: each whose address is taken
        (lambda row: row * 2 + row % 2, {0, 1, 2}),
    ],
)
def test_an_entry_of_a_table(entry, stored):
    tensors = [tirx.decl_buffer((8,), "float32", f"tensor{i}") for i in range(4)]
    memory = tirx.tvm_stack_alloca("tvm_ffi_any", 4)
    table, row = tirx.Var("table", memory.ty), variable("row", "int32")
    view = tirx.decl_buffer((8,), "float32", "view")
    address = tirx.tvm_struct_get(table, entry(row), 15, "handle")
    pointer = tensors[0].data.ty
    statements = [
        tirx.Bind(table, memory),
        *(
            tirx.Evaluate(tirx.tvm_struct_set(table, number, 15, tensor.data))
            for number, tensor in enumerate(tensors[:3])
        ),
        tirx.DeclBuffer(view, data=tirx.call_intrin(pointer, "tirx.reinterpret", address)),
        tirx.For(row, 0, 2, tirx.ForKind.SERIAL, store(view, [index(0)], tirx.const(0, "float32"))),
    ]
    function = kernel(tensors, [block("inside", *statements)], {})
    assert stored_parameters(function) == stored
