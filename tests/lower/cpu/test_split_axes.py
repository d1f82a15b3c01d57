"""Groups as axes: sums over channels of a group have affine indices, and are tiled."""

from itertools import product

import pytest
from tvm import te, tirx

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.split_axes import split_axes
from graphgrad.ops.conv import Layouts, Window, convolution, data_gradient, weight_gradient
from tests.lower.kernel_programs import run, tensor

LAYOUTS = {"last": Layouts("NHWC", "HWIO"), "first": Layouts("NCHW", "OIHW")}
BATCH, EXTENT, KERNEL = 2, 9, 3
GRADIENTS = ("forward", "data", "weight")


def grouped(which, order, channels, filters, groups, stride=1, dtype="float32"):
    """Return a grouped convolution or one of its gradients, and its arguments."""
    layouts = LAYOUTS[order]
    window = Window((stride,) * 2, (1,) * 4, (1, 1), groups)
    out = (EXTENT + 2 - KERNEL) // stride + 1

    def ordered(layout, **extents):
        return [extents.get(axis, extents.get("S")) for axis in layout]

    x_shape = ordered(layouts.data, N=BATCH, C=channels, S=EXTENT)
    w_shape = ordered(layouts.kernel, O=filters, I=channels // groups, S=KERNEL)
    y_shape = ordered(layouts.data, N=BATCH, C=filters, S=out)
    x, w, ct = (
        tensor(*shape, dtype=dtype, name=name)
        for shape, name in ((x_shape, "x"), (w_shape, "w"), (y_shape, "ct"))
    )
    orders = (layouts.data, layouts.kernel, layouts.data)
    if which == "forward":
        return [x, w], convolution(x, w, y_shape, window, orders, dtype)
    if which == "data":
        return [ct, w], data_gradient(ct, w, x_shape, window, orders, dtype)
    return [x, ct], weight_gradient(x, ct, w_shape, window, layouts)


SIZES = {
    "wide": (32, 64, 2),
    "narrow": (12, 24, 4),
    "odd": (15, 21, 3),
    "depthwise": (24, 24, 24),
    "multiplier": (8, 32, 8),
    "one filter": (32, 4, 4),
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("which", "order"), list(product(GRADIENTS, LAYOUTS)))
@pytest.mark.parametrize("sizes", SIZES)
def test_values(sizes, which, order, stride):
    inputs, output = grouped(which, order, *SIZES[sizes], stride)
    run(inputs, [output]).agree()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(dtype):
    inputs, output = grouped("forward", "last", *SIZES["wide"], dtype=dtype)
    run(inputs, [output]).agree()


def divides(stage):
    return any(
        isinstance(node, tirx.FloorDiv | tirx.FloorMod)
        for load in stage.loads
        for node in load.indices
    ) or "//" in str(stage.values[0])


@pytest.mark.parametrize("which", GRADIENTS)
def test_no_sum_divides(which):
    inputs, output = grouped(which, "last", *SIZES["wide"])
    func = te.create_prim_func([*inputs, output])
    assert any(divides(stage) for stage in stages(func) if stage.reduced)
    apart, (stand_in,) = split_axes(func)
    assert not any(divides(stage) for stage in stages(apart) if stage.reduced)
    assert len(stand_in.buffer.shape) == len(stand_in.base.shape) + 1


def test_a_map_behind_is_computed_with_the_sum():
    inputs, output = grouped("forward", "last", *SIZES["wide"])
    bias, other = tensor(64, name="bias"), tensor(*[int(e) for e in output.shape], name="other")
    result = te.compute(
        output.shape, lambda *i: tirx.max(output(*i) + bias(i[-1]), 0.0) + other(*i)
    )
    runs = run([*inputs, bias, other], [result])
    runs.agree()
    assert [str(b.name) for b in runs.func.body.block.alloc_buffers] == ["padded"]


@pytest.mark.parametrize(
    "body",
    [
        lambda y: te.compute(y.shape, lambda n, h, w, k: y(n, h, w, 63 - k)),
        lambda y: te.compute((2, 64, 9, 9), lambda n, k, h, w: y(n, h, w, k) * 2),
        lambda y: te.compute((2, 9, 9, 32), lambda n, h, w, k: y(n, h, w, k) + 1),
        lambda y: te.compute((2, 9, 9, 64), lambda n, h, w, k: y(n, h, w, k) + y(n, w, h, k)),
    ],
    ids=["reversed", "permuted", "first half", "transposed"],
)
def test_maps_behind_that_take_other_elements(body):
    inputs, output = grouped("forward", "last", *SIZES["wide"])
    run(inputs, [body(output)]).agree()


def test_a_border_around_a_result():
    """Nothing of the kernel reads it, but the caller does."""
    inputs, output = grouped("forward", "last", *SIZES["wide"])
    n, h, w, k = (int(extent) for extent in output.shape)
    padded = te.compute(
        (n, h + 2, w, k),
        lambda *i: tirx.if_then_else(i[1] < h, output(*i), tirx.const(0, "float32")),
    )
    run(inputs, [padded]).agree()


def test_two_readers():
    inputs, output = grouped("forward", "last", *SIZES["wide"])
    one = te.compute(output.shape, lambda *i: output(*i) + 1)
    two = te.compute(output.shape, lambda *i: output(*i) * output(*i))
    run(inputs, [one, two]).agree()


def test_a_map_behind_two_sums():
    inputs, one = grouped("forward", "last", *SIZES["wide"])
    others, two = grouped("forward", "last", *SIZES["wide"])
    result = te.compute(one.shape, lambda *i: one(*i) - two(*i))
    run([*inputs, *others], [result]).agree()


def test_an_extent_that_is_no_multiple_is_left_alone():
    x, w = tensor(10, 8), tensor(3, 8)
    k = te.reduce_axis((0, 8), "k")
    y = te.compute((10,), lambda i: te.sum(x(i, k) * w(i // 4, k), axis=k))
    func = te.create_prim_func([x, w, y])
    same, stand_ins = split_axes(func)
    assert same.same_as(func)
    assert not stand_ins
    run([x, w], [y]).agree()


def test_a_map_by_groups():
    x, mean = tensor(2, 4, 8, 9), tensor(2, 4, name="mean")
    y = te.compute((2, 32, 9), lambda n, c, h: x(n, c // 8, c % 8, h) - mean(n, c // 8))
    func = te.create_prim_func([x, mean, y])
    (stage,) = stages(split_axes(func)[0])
    assert [axis.extent for axis in stage.axes] == [2, 4, 8, 9]
    run([x, mean], [y]).agree()


def test_maps_that_repeat_elements_or_end_in_a_group_are_left_alone():
    x = tensor(6, 8)
    repeated = te.compute((12, 8), lambda i, j: x(i // 2, j), name="repeated")
    flat = te.compute((2, 48), lambda i, j: x(j // 8, j % 8), name="flat")
    func = te.create_prim_func([x, repeated, flat])
    assert split_axes(func)[0].same_as(func)
    run([x], [repeated, flat]).agree()


def test_a_map_that_divides_by_a_negative_number_is_left_alone():
    x = tensor(3, 2)

    def place(i, j):
        inside = tirx.all(i <= 6, (6 - i) // 2 < 3, (i - 6) % -2 == 0)
        return tirx.if_then_else(inside, x((i - 6) // -2, j) + i % -2, 0.0)

    y = te.compute((8, 2), place)
    func = te.create_prim_func([x, y])
    assert split_axes(func)[0].same_as(func)
    run([x], [y]).agree()
