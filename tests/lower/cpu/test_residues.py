"""Interleaved tensors: stored in place by what computes their phases, whatever is fused behind."""

from math import prod

import pytest
from tvm import te, tirx

import graphgrad as gg
from graphgrad.ir.kernel_structure import stages, statements_of
from graphgrad.ir.loops import block, loops, store
from graphgrad.lower.cpu.buffer_views import BufferView, joined
from graphgrad.lower.cpu.interleaved_parts import interleave_parts
from graphgrad.lower.cpu.residues import split_residues
from graphgrad.ops.conv import Window, data_gradient
from tests.lower.kernel_programs import run, tensor

ORDERS = {"last": ("NHWC", "HWIO", "NHWC"), "first": ("NCHW", "OIHW", "NCHW")}


def strided(shape, filters, kernel, strides, padding=0, order="last"):
    """Return the data gradient of a strided convolution and its arguments, of shapes in NCHW."""
    layouts = ORDERS[order]
    batch, channels, *extents = shape
    window = Window(strides, (padding,) * 4, (1, 1), 1)
    out = [(e + 2 * padding - k) // s + 1 for e, k, s in zip(extents, kernel, strides, strict=True)]

    def ordered(standard, layout, values):
        return [dict(zip(standard, values, strict=True))[axis] for axis in layout]

    ct = tensor(*ordered("NCHW", layouts[0], (batch, filters, *out)), name="ct")
    w = tensor(*ordered("OIHW", layouts[1], (filters, channels, *kernel)), name="w")
    whole = ordered("NCHW", layouts[2], shape)
    return [ct, w], data_gradient(ct, w, whole, window, layouts, "float32")


def names(func):
    """Return the buffers that a kernel allocates."""
    return [str(buffer.name) for buffer in func.body.block.alloc_buffers]


CASES = {
    "even": ((2, 16, 12, 12), 32, (3, 3), (2, 2), 1),
    "odd": ((3, 17, 13, 11), 19, (3, 3), (2, 2), 1),
    "taps missing": ((2, 32, 11, 12), 24, (1, 1), (2, 2)),
    "three": ((1, 24, 13, 17), 40, (4, 2), (3, 2)),
    "one axis": ((2, 16, 16, 9), 16, (3, 3), (1, 2), 1),
    "few": ((1, 2, 5, 5), 3, (3, 3), (2, 2)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"taps missing"}))
def test_phases_store_in_place(case, order):
    inputs, output = strided(*CASES[case], order=order)
    runs = run(inputs, [output])
    runs.agree()
    assert "if_then_else(v_i1 % 2" not in runs.text
    assert not [name for name in names(runs.func) if name.endswith("_part")]


def test_no_memory_is_left_between_phases_and_result():
    inputs, output = strided(*CASES["even"])
    assert names(run(inputs, [output]).func) == ["padded"]


def mapped(output, *others, body):
    return te.compute(output.shape, lambda *i: body(output(*i), *(t(*i) for t in others)))


def run_with_map_behind(case, order):
    inputs, output = strided(*CASES[case], order=order)
    other = tensor(*[int(e) for e in output.shape], name="other")
    runs = run([*inputs, other], [mapped(output, other, body=lambda a, b: a * 2 + b)])
    runs.agree()
    return runs


@pytest.mark.parametrize("order", ORDERS)
def test_classes_without_terms_are_not_stored_apart(order):
    inputs, output = strided(*CASES["taps missing"], order=order)
    assert not split_residues(te.create_prim_func([*inputs, output]))[1]
    run(inputs, [output]).agree()
    run_with_map_behind("taps missing", order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", ["odd", "three"])
def test_a_map_behind_is_computed_with_each_phase(case, order):
    runs = run_with_map_behind(case, order)
    assert not [name for name in names(runs.func) if name != "padded"]


@pytest.mark.parametrize("case", ["odd", "taps missing"])
def test_a_mask_behind(case):
    """It has a condition of its own, which stays."""
    inputs, output = strided(*CASES[case])
    other = tensor(*[int(e) for e in output.shape], name="other")
    zero = tirx.const(0, "float32")
    result = mapped(output, other, body=lambda a, b: tirx.if_then_else(b > 0, a, zero))
    run([*inputs, other], [result]).agree()


def test_a_reduction_behind():
    inputs, output = strided(*CASES["odd"])
    batch, height, width, channels = output.shape
    n, h, w = (te.reduce_axis((0, extent)) for extent in (batch, height, width))
    total = te.compute((channels,), lambda c: te.sum(output(n, h, w, c), axis=[n, h, w]))
    run(inputs, [total]).agree()


def test_two_readers():
    inputs, output = strided(*CASES["odd"])
    zero = tirx.const(0, "float32")
    one = mapped(output, body=lambda a: tirx.max(a, zero))
    two = mapped(output, body=lambda a: a + 1)
    run(inputs, [one, two]).agree()


def test_a_symbolic_batch():
    n = tirx.Var("n", "int64")
    ct = te.placeholder((n, 6, 6, 32), "float32", "ct")
    w = tensor(3, 3, 16, 32, name="w")
    window = Window((2, 2), (1, 1, 1, 1), (1, 1), 1)
    output = data_gradient(ct, w, (n, 12, 12, 16), window, ORDERS["last"], "float32")
    shapes = [(3, 6, 6, 32), (3, 3, 16, 32), (3, 12, 12, 16)]
    run([ct, w], [output], shapes=shapes).agree()


def test_a_symbolic_extent():
    h = tirx.Var("h", "int64")
    ct = te.placeholder((2, 6, h, 32), "float32", "ct")
    w = tensor(3, 3, 16, 32, name="w")
    window = Window((2, 2), (1, 1, 1, 1), (1, 1), 1)
    output = data_gradient(ct, w, (2, 12, 2 * h, 16), window, ORDERS["last"], "float32")
    shapes = [(2, 6, 5, 32), (3, 3, 16, 32), (2, 12, 10, 16)]
    run([ct, w], [output], shapes=shapes).agree()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(dtype):
    ct, w = tensor(2, 6, 7, 32, dtype=dtype, name="ct"), tensor(3, 3, 16, 32, dtype=dtype, name="w")
    window = Window((2, 2), (1, 1, 1, 1), (1, 1), 1)
    output = data_gradient(ct, w, (2, 12, 13, 16), window, ORDERS["last"], dtype)
    run([ct, w], [output]).agree()


def test_a_derived_gradient_has_the_same_form():
    x, w = tensor(2, 16, 13, 12, name="x"), tensor(24, 16, 3, 3, name="w")
    ct = tensor(2, 24, 6, 5, name="ct")
    r, s, c = (te.reduce_axis((0, extent)) for extent in (3, 3, 16))
    y = te.compute(
        (2, 24, 6, 5),
        lambda n, k, p, q: te.sum(x(n, c, 2 * p + r, 2 * q + s) * w(k, c, r, s), axis=[c, r, s]),
    )
    (gradient,) = gg.te_gradient(y, [x], ct)
    func = te.create_prim_func([ct, w, gradient])
    assert len(split_residues(func)[1]) == 4
    run([ct, w], [gradient]).agree()


def test_what_is_no_merge_is_left_alone():
    x = tensor(8, 8)
    kept = te.compute((8, 8), lambda i, j: x(i, j) + 1, name="kept")
    chosen = te.compute(
        (8, 8), lambda i, j: tirx.if_then_else(i < 4, kept(i, j), kept(j, i)), name="chosen"
    )
    func = te.create_prim_func([x, chosen])
    same, parts = split_residues(func)
    assert same.same_as(func)
    assert not parts
    assert joined(func.body, parts).same_as(func.body)


def test_a_merge_over_many_remainders_is_left_alone():
    """Each part is a loop nest to compile."""
    x = tensor(64)
    half = te.compute((64,), lambda i: x(i) * 2, name="half")
    merged = te.compute(
        (64,), lambda i: tirx.if_then_else(i % 32 == 3, half(i), half(63 - i)), name="merged"
    )
    assert not split_residues(te.create_prim_func([x, merged]))[1]


def test_parts_are_stages_of_known_structure():
    inputs, output = strided(*CASES["three"])
    apart, parts = split_residues(te.create_prim_func([*inputs, output]))
    found = stages(apart)
    written = [stage.stores[0].buffer for stage in found]
    assert len(parts) == 6
    assert all(any(buffer.same_as(part.buffer) for buffer in written) for part in parts)
    assert not any(buffer.same_as(parts[0].base) for buffer in written)
    elements = [prod(int(extent) for extent in part.buffer.shape) for part in parts]
    assert sum(elements) == 13 * 17 * 24


def strided_depthwise(shape, strides, padding=1, kernel=3):
    """Return the data gradient of a strided depthwise convolution, masked, and its arguments."""
    batch, height, width, channels = shape
    window = Window(strides, (padding,) * 4, (1, 1), channels)
    out = [
        (extent + 2 * padding - kernel) // stride + 1
        for extent, stride in zip((height, width), strides, strict=True)
    ]
    ct, w = tensor(batch, *out, channels, name="ct"), tensor(kernel, kernel, 1, channels, name="w")
    gradient = data_gradient(ct, w, shape, window, ORDERS["last"], "float32")
    other, zero = tensor(*shape, name="other"), tirx.const(0, "float32")
    masked = mapped(gradient, other, body=lambda a, b: tirx.if_then_else(b > 0, a, zero))
    return [ct, w, other], masked


@pytest.mark.parametrize(
    ("shape", "strides", "padding", "kernel"),
    [
        ((8, 48, 48, 48), (2, 2), 1, 3),
        ((40, 24, 28, 48), (2, 2), 1, 3),
        ((8, 28, 28, 96), (2, 2), 1, 3),
        ((3, 13, 17, 64), (2, 2), 1, 3),
        ((4, 52, 48, 64), (2, 2), 2, 5),
        ((4, 63, 64, 64), (3, 2), 1, 3),
        ((8, 40, 40, 24), (1, 2), 1, 3),
    ],
)
def test_the_parts_of_a_depthwise_gradient_share_loops(shape, strides, padding, kernel):
    inputs, output = strided_depthwise(shape, strides, padding, kernel)
    runs = run(inputs, [output])
    runs.agree()
    # Where strides divide the extents all parts are equally long, and one loop goes over all.
    if all(extent % stride == 0 for extent, stride in zip(shape[1:3], strides, strict=True)):
        _, together = runs.text.split('T.sblock("interleaved")')
        assert together.count("T.parallel") == 1


def test_a_part_that_reads_another_has_loops_of_its_own():
    """Neighboring nests of one tensor whose second reads what the first stores are not joined."""
    base = tirx.decl_buffer((16, 32), "float32", "base")
    parts = [tirx.decl_buffer((8, 32), "float32", name) for name in ("even", "odd")]
    views = [
        BufferView(part, base, lambda at, number=number: [at[0] * 2 + number, at[1]])
        for number, part in enumerate(parts)
    ]

    def nest(part, value):
        i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
        return loops([(i, 8), (j, 32)], store(part, [i, j], value(i, j)))

    def shared(second):
        first = nest(parts[0], lambda i, j: tirx.const(1, "float32"))
        body = block("root", first, nest(parts[1], second), buffers=parts)
        return len(statements_of(interleave_parts(body, views).block.body))

    assert shared(lambda i, j: tirx.const(2, "float32")) == 1
    assert shared(lambda i, j: tirx.BufferLoad(parts[0], [7 - i, j])) == 2
