"""Reading the structure of a function."""

import pytest
import tvm_ffi
from tvm import te, tirx, topi
from tvm.s_tir import SBlock

from graphgrad.ir.kernel_structure import linear_coefficient, rename_blocks, stages, stride
from tests.lower.kernel_programs import tensor


def only_stage(output, *inputs):
    (stage,) = stages(te.create_prim_func([*inputs, output]))
    return stage


def test_stages_in_order():
    x = tensor(8, 16)
    found = stages(te.create_prim_func([x, topi.nn.softmax(x)]))
    assert [bool(stage.reduced) for stage in found] == [True, False, True, False]


def test_a_reduction():
    x = tensor(8, 16, dtype="float64")
    stage = only_stage(topi.sum(x, 1), x)
    assert [(axis.extent, axis.reduced) for axis in stage.axes] == [(8, False), (16, True)]
    assert (len(stage.loads), stage.work, stage.dtype) == (1, 128, "float64")


def test_scalars_are_stages_without_axes():
    x, y = tensor(), tensor(5, name="y")
    scalar, vector = stages(te.create_prim_func([x, y, topi.multiply(topi.exp(x), y)]))
    assert (scalar.axes, scalar.work) == ([], 1)
    assert [axis.extent for axis in vector.axes] == [5]


def test_symbolic_extents_are_unknown():
    n = te.var("n", "int64")
    x = te.placeholder((n, 4), "float32", "x")
    assert [axis.extent for axis in only_stage(topi.exp(x), x).axes] == [None, 4]


def test_conditions_and_calls():
    x = tensor(8, 16)
    padded = only_stage(topi.nn.pad(x, (1, 1)), x)
    assert padded.conditional
    assert not only_stage(topi.exp(x), x).conditional
    assert "tirx.exp" in only_stage(topi.exp(x), x).calls


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (lambda i, j: (j, i), (1, 8)),
        (lambda i, j: (i, j), (8, 1)),
        (lambda i, j: (i + j, 3), (8, 8)),
        (lambda i, j: (0, 2 * j + 1), (0, 2)),
        (lambda i, j: (i // 2, j), (None, 1)),
    ],
)
def test_strides(index, expected):
    x = tensor(8, 8)
    stage = only_stage(te.compute((4, 3), lambda i, j: x(*index(i, j))), x)
    assert tuple(stride(stage.loads[0], axis.var) for axis in stage.axes) == expected


def test_coefficients():
    i, j = te.var("i"), te.var("j")
    assert linear_coefficient(3 * i + j, i) == 3
    assert linear_coefficient(j, i) == 0
    assert linear_coefficient(i // 2, i) is None
    assert linear_coefficient(i * j, i) is None


def test_names_are_taken_once():
    x = tensor(8, 16)
    func = te.create_prim_func([x, topi.add(topi.exp(x), 1.0)])
    names = {stage.name for stage in stages(func)}
    nests = tirx.SeqStmt([func.body.block.body, func.body.block.body])
    found = []
    tvm_ffi.structural_walk(
        rename_blocks(nests, set(names)), (SBlock, lambda block: found.append(block.name_hint))
    )
    assert len({*found, *names}) == len(found) + len(names) == 6
