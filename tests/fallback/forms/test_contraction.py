"""Derived contractions: their form, how much work they are, and their values."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations
from graphgrad.fallback.kinds import Kind, kind_of
from graphgrad.fallback.walk import is_load, loaded, postorder
from tests.fallback.body_evaluations import body_evaluations, contraction_points
from tests.fallback.contractions import Convolution, check_values, einsum, gradients_of
from tests.fallback.interpreter import evaluate
from tests.fallback.running import run, unwritten
from tests.labels import label

SAME = [
    Convolution(),
    Convolution(kernel=5, padding=2),
    Convolution(padding=2, dilation=2),
    Convolution(stride=2),
    Convolution(size=9, stride=3),
    Convolution(kernel=4, stride=2),
    Convolution(kernel=1, padding=0, stride=2),
    Convolution(kernel=7, padding=3, stride=2, size=14, channels=1),
    Convolution(channels=4, filters=6, groups=2),
    Convolution(channels=4, filters=6, groups=2, stride=2),
    Convolution(channels=6, filters=6, groups=6),
    Convolution(rank=1),
    Convolution(rank=1, size=10, kernel=5, padding=2, stride=2),
    Convolution(rank=3, size=4),
    Convolution(rank=3, size=4, stride=2, channels=1),
    Convolution(kernel=2, padding=0, stride=2),
    Convolution(kernel=4, padding=0, stride=4),
]
"""Convolutions whose output is the data's size divided by the stride: nothing reads outside."""

OTHER = [
    Convolution(padding=0),
    Convolution(size=7, stride=2),
    Convolution(size=9, stride=2, dilation=2, padding=2),
    Convolution(size=11, stride=3),
    Convolution(kernel=2, padding=0, stride=3, size=9),
    Convolution(kernel=4, padding=0, stride=2),
]

TRANSPOSED = [
    Convolution(transposed=True),
    Convolution(transposed=True, kernel=4, stride=2),
    Convolution(transposed=True, stride=2, dilation=2),
    Convolution(transposed=True, stride=2, channels=4, filters=6, groups=2),
    Convolution(transposed=True, rank=1, kernel=2, stride=3, padding=0),
    Convolution(transposed=True, rank=3, size=4, stride=2, channels=1),
]


def stages_of(gradient, *kinds):
    """Return the stages of some kinds that a gradient is computed by."""
    return [op for op in operations(gradient) if kind_of(op) in kinds]


def loads_of(op):
    """Return the operands of a contraction stage: its body must be a product of two loads."""
    body = op.body[0]
    value = body.source[0] if isinstance(body, tirx.Reduce) else body
    assert isinstance(value, tvm.ir.prim.Mul)
    operands = [v.value if isinstance(v, tvm.ir.prim.Cast) else v for v in (value.a, value.b)]
    assert all(is_load(operand) for operand in operands)
    return [loaded(operand) for operand in operands]


def check_form(gradient):
    """Assert that a gradient is in the normal form: affine products, no conditions in them."""
    products = stages_of(gradient, Kind.CONTRACTION, Kind.RESIDUE_CLASS)
    assert products
    assert not stages_of(gradient, Kind.REDUCE, Kind.SCATTER)
    divisions = tvm.ir.prim.FloorDiv | tvm.ir.prim.FloorMod | tvm.ir.prim.Div | tvm.ir.prim.Mod
    for op in products:
        for _, indices in loads_of(op):
            assert not any(isinstance(node, divisions) for node in postorder(*indices))
        assert all(int(axis.dom.extent) >= 1 for axis in [*op.axis, *op.reduce_axis])


@pytest.mark.parametrize("case", SAME + OTHER + TRANSPOSED, ids=str)
def test_convolutions(case):
    output, (data, weights) = case.tensors()
    head, gradients = gradients_of(output, [data, weights])
    assert contraction_points(gradients[0]) == case.data_points
    assert contraction_points(gradients[1]) == case.points
    for gradient in gradients:
        check_form(gradient)
    assert len(stages_of(gradients[1], Kind.CONTRACTION)) == 1
    check_values(output, [data, weights], head, gradients)


@pytest.mark.parametrize("case", SAME, ids=str)
def test_no_zero_between_strides_is_summed(case):
    assert case.data_points == case.points


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_convolutions_have_strided_ones_as_data_gradient(case):
    output, inputs = case.tensors()
    _, gradients = gradients_of(output, inputs)
    for gradient in gradients:
        assert len(stages_of(gradient, Kind.CONTRACTION)) == 1
        assert not stages_of(gradient, Kind.RESIDUE_CLASS, Kind.MERGE)


def test_reduced_loops_move_with_the_position_and_stand_in_the_forward_order():
    output, inputs = Convolution().tensors()
    _, (by_data, by_weights) = gradients_of(output, inputs)
    ((op,), (other,)) = (stages_of(g, Kind.CONTRACTION) for g in (by_data, by_weights))
    assert [axis.var.name for axis in op.reduce_axis] == ["k", "r0", "r1"]
    (_, read), (_, window) = loads_of(op)
    for i in range(2):
        row, offset = op.axis[2 + i].var, op.reduce_axis[1 + i].var
        assert tvm_ffi.structural_equal(read[2 + i], row + offset)
        assert tvm_ffi.structural_equal(window[2 + i], 2 - offset)
    assert [int(axis.dom.extent) for axis in other.reduce_axis] == [2, 8, 8]


EINSUMS = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "bij,bjk->bik", "bij,jk->bik", "bhij,bhkj->bhik",
    "ij,kl->il", "i,j->ij", "abc,cbd->ad", "ibj,kbj->bik",
]  # fmt: skip
EXTENTS = dict(zip("abcdhijkl", (2, 3, 2, 4, 2, 3, 4, 5, 2), strict=True))


@pytest.mark.parametrize("spec", EINSUMS)
def test_products_of_matrices(spec):
    output, inputs = einsum(spec, **{k: v for k, v in EXTENTS.items() if k in spec})
    head, gradients = gradients_of(output, inputs)
    points = np.prod([EXTENTS[letter] for letter in set(spec) - set(",->")])
    for gradient in gradients:
        check_form(gradient)
        assert contraction_points(gradient) == points
        assert len(list(operations(gradient))) == 3
    check_values(output, inputs, head, gradients)


def product_of(factors, dtype="float64"):
    """Return Σ_j of a product of elements of A[i,j], B[j,k] and M[i,k], and those."""
    shapes = {"A": (3, 4), "B": (4, 5), "M": (3, 5)}
    tensors = [te.placeholder(shape, dtype, name) for name, shape in shapes.items()]
    A, B, M = tensors
    j = te.reduce_axis((0, 4), "j")
    output = te.compute(
        (3, 5), lambda i, k: te.sum(factors(A[i, j], B[j, k], M[i, k]), axis=j), name="product"
    )
    return output, tensors


def mask(a, b, m):
    return m * a * b


def negative(a, b, m):
    return -(a * b) * m


def activation(a, b, m):
    return tirx.tanh(a) * b * m


def exponential(a, b, m):
    return tirx.exp(a) * b * m


@pytest.mark.parametrize("factors", [mask, negative, activation, exponential], ids=label)
def test_further_factors_are_maps(factors):
    output, inputs = product_of(factors)
    head, gradients = gradients_of(output, inputs)
    for gradient in gradients:
        check_form(gradient)
        works = [w for w in body_evaluations(gradient) if w.kind is Kind.MAP]
        assert works
        assert all(work.points < 60 for work in works)
    generator = np.random.default_rng(0)
    known = [(t, generator.standard_normal([int(e) for e in t.shape])) for t in [*inputs, head]]
    arrays = evaluate(gradients, known)
    for number, (tensor, array) in enumerate(known[:3]):
        direction = generator.standard_normal(array.shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = list(known)
            moved[number] = tensor, array + sign * step * direction
            (value,) = evaluate([output], moved)
            ends.append((value * known[3][1]).sum())
        expected = (ends[0] - ends[1]) / (2 * step)
        assert abs((arrays[number] * direction).sum() - expected) < 1e-7 * max(abs(expected), 1)


def test_a_derivative_that_is_nan_where_nothing_reads_adds_nothing():
    A = te.placeholder((6,), "float64", name="A")
    B = te.placeholder((3, 4), "float64", name="B")
    r = te.reduce_axis((0, 3), "r")
    output = te.compute((4,), lambda i: te.sum(tirx.sqrt(A[i + r]) * B[r, i], axis=r), name="roots")
    padded = te.compute(
        (4,),
        lambda i: te.sum(
            tirx.if_then_else(i + r < 4, tirx.sqrt(A[i + r]) * B[r, i], tirx.const(0.0, "float64")),
            axis=r,
        ),
        name="roots",
    )
    values, weights = np.array([1.0, 4.0, 9.0, 4.0, -1.0, -1.0]), np.ones((3, 4))
    for result, finite in ((output, 4), (padded, 6)):
        _, (gradient,) = gradients_of(result, [A])
        (head,) = (t for op in operations(gradient) for t in op.input_tensors if t.op.name == "ct")
        (array,) = evaluate([gradient], [(A, values), (B, weights), (head, np.ones(4))])
        assert np.isfinite(array).sum() == finite
        if finite == 6:
            counts = np.array([1, 2, 3, 3, 0, 0])
            np.testing.assert_allclose(array, counts * [0.5, 0.25, 1 / 6, 0.25, 0, 0])


def test_a_mask_that_is_a_condition_is_applied_to_the_cotangent_once():
    def masked(a, b, m):
        return tirx.if_then_else(m > 0, a * b, tirx.const(0.0, "float64"))

    output, inputs = product_of(masked)
    head, gradients = gradients_of(output, inputs[:2])
    for gradient in gradients:
        check_form(gradient)
        (work,) = (w for w in body_evaluations(gradient) if w.kind is Kind.MAP)
        assert work.points == 15
    check_values_of_masked(output, inputs, head, gradients)


def check_values_of_masked(output, inputs, head, gradients):
    generator = np.random.default_rng(1)
    a, b, m, h = (generator.standard_normal([int(e) for e in t.shape]) for t in [*inputs, head])
    known = list(zip([*inputs, head], (a, b, m, h), strict=True))
    kept = np.where(m > 0, h, 0)
    for given, expected in zip(evaluate(gradients, known), (kept @ b.T, a.T @ kept), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_in_float32(dtype):
    output, inputs = product_of(lambda a, b, m: a * b, dtype)
    _, gradients = gradients_of(output, inputs[:2])
    for gradient in gradients:
        assert str(gradient.dtype) == dtype
        (op,) = stages_of(gradient, Kind.CONTRACTION)
        assert str(op.output(0).dtype) == "float32"
        loads_of(op)


def test_the_exact_form_leaves_out_what_is_not_read():
    case = Convolution(rank=1, batch=1, channels=1, filters=1, size=5)
    output, (data, weights) = case.tensors()
    arrays = {
        "X": np.ones((1, 1, 5)),
        "W": np.array([[[1.0, np.inf, 2.0]]]),
        "ct": np.ones((1, 1, 5)),
    }
    arrays["ct"][0, 0, 2] = 0.0

    def by_data(**options):
        head, (gradient,) = gradients_of(output, [data], **options)
        known = [(t, arrays[t.op.name]) for t in (data, weights, head)]
        return gradient, evaluate([gradient], known)[0]

    arrays["W"][0, 0] = [1.0, 2.0, np.inf]
    exact, values = by_data(pads=False)
    assert kind_of(exact.op) is Kind.REDUCE
    assert not stages_of(exact, Kind.PAD)
    # The first position is not read through the last weight, at which only a zero would stand.
    assert np.isfinite(values[0, 0, 0])
    padded, values = by_data()
    assert stages_of(padded, Kind.PAD)
    assert np.isnan(values[0, 0, 0])


@pytest.mark.parametrize(
    "case",
    [
        Convolution(size=6),
        Convolution(size=6, stride=2),
        Convolution(size=6, stride=2, channels=4, filters=4, groups=2),
        Convolution(size=6, kernel=3, stride=3, padding=0),
        Convolution(rank=1, size=9, kernel=1, stride=3, padding=0),
        Convolution(transposed=True, size=3, stride=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [0, 1], ids=["data", "weights"])
def test_second_order(case, number):
    output, inputs = case.tensors()
    head, gradients = gradients_of(output, inputs)
    outer = te.placeholder(gradients[number].shape, "float64", name="outer")
    # Each gradient is bilinear in the other input and the cotangent.
    sources = [inputs[1 - number], head]
    seconds = te_gradient(gradients[number], sources, outer)
    for second in seconds:
        check_form(second)
        assert contraction_points(second) <= 1.3 * contraction_points(gradients[number])
    check_values(gradients[number], sources, outer, seconds)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_symbolic_batch_is_padded_in_other_dimensions_only(dtype):
    n = te.var("n", dtype)
    data = te.placeholder((n, 3, 8, 8), "float64", name="X")
    weights = te.placeholder((4, 3, 3, 3), "float64", name="W")
    c, r, q = (te.reduce_axis((0, 3), name) for name in "crq")

    def body(b, k, y, x):
        rows, columns = 2 * y + r - 1, 2 * x + q - 1
        inside = tirx.all(rows >= 0, rows < 8, columns >= 0, columns < 8)
        value = tirx.if_then_else(inside, data[b, c, rows, columns], tirx.const(0.0, "float64"))
        return te.sum(value * weights[k, c, r, q], axis=[c, r, q])

    output = te.compute((n, 4, 4, 4), body, name="conv")
    _, gradients = gradients_of(output, [data, weights])
    for gradient in gradients:
        assert not stages_of(gradient, Kind.REDUCE, Kind.SCATTER)
        for op in stages_of(gradient, Kind.CONTRACTION, Kind.RESIDUE_CLASS):
            loads_of(op)
        for op in stages_of(gradient, Kind.PAD):
            assert op.axis[0].dom.extent.same_as(n)


@pytest.mark.parametrize(
    "case",
    [
        Convolution(stride=2),
        Convolution(channels=4, filters=6, groups=2),
        Convolution(kernel=2, padding=0, stride=2),
        Convolution(transposed=True, kernel=4, stride=2),
    ],
    ids=str,
)
def test_compiled(case):
    output, inputs = case.tensors()
    head, gradients = gradients_of(output, inputs)
    generator = np.random.default_rng(3)
    tensors = [*inputs, head]
    arrays = [generator.standard_normal([int(e) for e in t.shape]) for t in tensors]
    expected = evaluate(gradients, list(zip(tensors, arrays, strict=True)))
    func = create_prim_func([*tensors, *gradients])
    found = run(func, *arrays, *unwritten(*gradients))[-2:]
    for given, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-12, atol=1e-12)


def test_kinds_reach_the_blocks():
    output, inputs = Convolution(stride=2).tensors()
    head, (gradient, _) = gradients_of(output, inputs)
    text = str(create_prim_func([inputs[1], head, gradient]))
    assert text.count('"graphgrad.kind": "residue_class"') == 4
    assert text.count('"graphgrad.kind": "merge"') == 1
