"""Residue classes: which there are, how much they save, and that they are put together again."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.fallback.contribution import Contribution
from graphgrad.fallback.forms.residues import merged, residue_classes
from graphgrad.fallback.graph import operations
from graphgrad.fallback.indices.linear_system import Axis, element_axes
from graphgrad.fallback.kinds import Kind, kind_of
from graphgrad.fallback.walk import substituted
from tests.fallback.body_evaluations import body_evaluations, contraction_points
from tests.fallback.contractions import Convolution, check_values, gradients_of
from tests.fallback.interpreter import evaluate


def windows(size, kernel, stride, padding, dilation=1):
    """Return the reads of a strided window, Σ_r X[s·y + d·r - p], and their loops."""
    output = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    tensor = te.placeholder((size,), "float64", name="X")
    y, r = te.var("y"), te.var("r")
    zero = tirx.const(0, "int32")
    axes = [
        Axis(y, zero, tirx.const(output, "int32")),
        Axis(r, zero, tirx.const(kernel, "int32")),
    ]
    index = stride * y + dilation * r - padding
    inside = [index >= 0, index < size]
    return Contribution(tensor, axes, [index], [], inside), output


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        (8, 3, 2, 1, 1), (7, 3, 2, 1, 1), (12, 5, 3, 2, 1), (12, 3, 4, 0, 1), (9, 3, 2, 2, 2),
        (4, 3, 2, 1, 1), (10, 2, 3, 0, 1), (12, 3, 3, 3, 2), (16, 4, 6, 1, 2),
    ],
)  # fmt: skip
def test_residue_classes_visit_each_point_that_reads_and_hardly_another(
    size, kernel, stride, padding, dilation
):
    contribution, output = windows(size, kernel, stride, padding, dilation)
    found = residue_classes(contribution, element_axes(contribution.tensor.shape), [stride])
    pairs = {
        (stride * y + dilation * r - padding, y, r) for y in range(output) for r in range(kernel)
    }
    read = {pair for pair in pairs if 0 <= pair[0] < size}
    visited = set()
    for residue_class in found:
        (element,), loops = residue_class.element, residue_class.inversion.loops
        for q in range(int(element.extent)):
            for z in range(int(loops[0].extent) if loops else 1):
                known = [(element.var, q), *((loop.var, z) for loop in loops)]
                position, y, r = (
                    at(expr, known)
                    for expr in [residue_class.position[0], *residue_class.inversion.values]
                )
                if all(at(guard, known) for guard in residue_class.inversion.guards):
                    assert (position, y, r) not in visited
                    visited.add((position, y, r))
    assert visited == read
    fitting = [
        sum((position + padding - dilation * r) % stride == 0 for r in range(kernel))
        for position in range(size)
    ]
    assert sum(residue_class.points for residue_class in found) <= sum(fitting)
    assert len(found) <= stride


def at(expr, known):
    """Return the number that an expression is at some values of its variables."""
    pairs = [(var, tirx.const(value, str(var.ty))) for var, value in known]
    return int(tvm.sym.Analyzer().simplify(substituted(expr, pairs)))


def residues_in(op):
    """The residues of a class, which its name ends with."""
    return op.name.rpartition("_r")[2]


def test_residue_classes_without_points_have_no_stage():
    case = Convolution(kernel=1, padding=0, stride=3, size=7)
    output, inputs = case.tensors()
    head, gradients = gradients_of(output, inputs)
    (residue_class,) = (op for op in operations(gradients[0]) if kind_of(op) is Kind.RESIDUE_CLASS)
    assert residues_in(residue_class) == "0000"
    assert contraction_points(gradients[0]) == case.points
    check_values(output, inputs, head, gradients)


def test_residue_classes_share_one_border_and_those_without_read_the_cotangent_itself():
    output, inputs = Convolution(stride=2).tensors()
    _, (gradient, _) = gradients_of(output, inputs)
    ops = list(operations(gradient))
    assert sum(kind_of(op) is Kind.PAD for op in ops) == 1
    sources = {
        residues_in(op): {tensor.op.name for tensor in op.input_tensors}
        for op in ops
        if kind_of(op) is Kind.RESIDUE_CLASS
    }
    assert sources.pop("0000") == {"ct", "W"}
    assert sorted(sources) == ["0001", "0010", "0011"]
    assert all(names == {"ct_pad", "W"} for names in sources.values())


def test_windows_that_do_not_overlap_are_digits_not_residue_classes():
    case = Convolution(kernel=4, padding=0, stride=4, size=8)
    output, inputs = case.tensors()
    _, (gradient, _) = gradients_of(output, inputs)
    ops = [op for op in operations(gradient) if kind_of(op) is not None]
    assert [kind_of(op) for op in ops] == [Kind.CONTRACTION, Kind.MAP]
    assert [int(axis.dom.extent) for axis in ops[0].axis] == [2, 3, 2, 4, 2, 4]
    assert contraction_points(gradient) == case.points


def test_groups_are_digits():
    case = Convolution(channels=6, filters=4, groups=2)
    output, inputs = case.tensors()
    _, gradients = gradients_of(output, inputs)
    shapes = [
        [int(axis.dom.extent) for axis in op.axis]
        for gradient in gradients
        for op in operations(gradient)
        if kind_of(op) is Kind.CONTRACTION
    ]
    assert shapes == [[2, 2, 3, 8, 8], [2, 2, 3, 3, 3]]


def pooled(size, window, stride):
    """Return sums over windows of a square image."""
    data = te.placeholder((2, size, size), "float64", name="X")
    r, q = te.reduce_axis((0, window), "r"), te.reduce_axis((0, window), "q")
    output = (size - window) // stride + 1
    return te.compute(
        (2, output, output),
        lambda c, y, x: te.sum(data[c, stride * y + r, stride * x + q], axis=[r, q]),
        name="pool",
    ), [data]


@pytest.mark.parametrize(
    ("size", "window", "stride"), [(8, 2, 2), (9, 3, 2), (9, 3, 3), (16, 3, 5), (20, 2, 17)]
)
def test_sums_of_one_operand_are_gathered_where_that_is_little_work(size, window, stride):
    output, inputs = pooled(size, window, stride)
    head, (gradient,) = gradients_of(output, inputs)
    kinds = {work.kind for work in body_evaluations(gradient)}
    assert not kinds & {Kind.RESIDUE_CLASS, Kind.CONTRACTION, Kind.PAD}
    check_values(output, inputs, head, [gradient])


def test_merging_puts_zeros_where_no_residue_class_is():
    even = te.placeholder((3,), "float64", name="even")
    result = merged({(0,): even}, (5,), [2], "float64", "result")
    (array,) = evaluate([result], [(even, np.array([1.0, 2.0, 3.0]))])
    np.testing.assert_array_equal(array, [1, 0, 2, 0, 3])
    assert kind_of(result.op) is Kind.MERGE


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_merging_takes_positions_of_any_dtype(dtype):
    size = tirx.const(4, dtype)
    parts = {(d,): te.placeholder((2,), "float64", name=f"part{d}") for d in range(2)}
    result = merged(parts, (size,), [2], "float64", "result")
    known = [(part, np.array([d, d + 10.0])) for (d,), part in parts.items()]
    (array,) = evaluate([result], known)
    np.testing.assert_array_equal(array, [0, 1, 10, 11])
