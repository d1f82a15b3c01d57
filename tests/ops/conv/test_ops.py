"""The gradients of convolutions as ops: their identity, their closure, and empty batches."""

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.tensor import Emitter
from graphgrad.ops.conv import Window, conv_data_gradient, conv_weight_gradient
from graphgrad.ops.define import call_op
from tests.running import F64, function, run

nn = relax.op.nn

SHAPES = {
    1: ((2, 3, 7), (4, 3, 3)),
    2: ((2, 3, 6, 5), (4, 3, 3, 2)),
    3: ((1, 2, 4, 3, 3), (3, 2, 2, 2, 1)),
}


def called(mod, name):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(mod[name], visit)
    return set(found)


def program(rank, transposed=False, x_shape=None, **attributes):
    x, w = SHAPES[rank]
    w = (x[1], w[0], *w[2:]) if transposed else w
    x = in_layout(x, "NCDHW", attributes.get("data_layout"))
    w = in_layout(w, "IODHW" if transposed else "OIDHW", attributes.get("kernel_layout"))
    convolution = getattr(nn, f"conv{rank}d" + "_transpose" * transposed)
    return function(
        lambda builder, x, w: builder.emit(convolution(x, w, **attributes)),
        (x_shape or x, F64),
        (w, F64),
    )


def in_layout(shape, standard, layout):
    axes = standard[:2] + standard[len(standard) - len(shape) + 2 :]
    return tuple(shape[axes.index(axis)] for axis in layout or axes)


LAST = {
    1: {"data_layout": "NWC", "kernel_layout": "WIO"},
    2: {"data_layout": "NHWC", "kernel_layout": "HWIO"},
    3: {"data_layout": "NDHWC", "kernel_layout": "ODHWI"},
}


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("rank", SHAPES)
def test_derivatives_of_every_order_are_the_same_three_maps(rank, transposed, last):
    """So none of them permutes axes, in any layout."""
    mod = gg.vjp(program(rank, transposed, **(LAST[rank] if last else {})))
    first = called(mod, "main_vjp")
    plain, data, weight = (
        f"relax.nn.conv{rank}d",
        "graphgrad.conv_data_gradient",
        "graphgrad.conv_weight_gradient",
    )
    forward = plain + "_transpose" * transposed
    assert first - {forward} == {weight, plain if transposed else data}
    second = called(gg.vjp(mod, "main_vjp"), "main_vjp_vjp")
    second -= {"relax.add"}  # sums of what reaches one value on two ways
    assert second | {forward} == {forward, plain, data, weight}


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_a_batch_found_empty_at_run_time(transposed):
    n = tvm.tirx.Var("n", "int64")
    mod = gg.vjp(program(2, transposed, x_shape=(n, *SHAPES[2][0][1:])))
    x, w = SHAPES[2]
    w = (x[1], w[0], *w[2:]) if transposed else w
    shape = [int(d) if isinstance(d, tvm.tirx.IntImm) else 0 for d in mod["main"].ret_ty.shape]
    x_bar, w_bar = run(mod, "main_vjp", np.ones((0, *x[1:])), np.ones(w), np.ones(shape))[1:]
    assert x_bar.shape == (0, *x[1:])
    assert w_bar.shape == w
    assert not w_bar.any()


@pytest.mark.parametrize("rank", SHAPES)
def test_no_output_is_refused(rank):
    x = SHAPES[rank][0]
    mod = program(rank, x_shape=(*x[:2], *[1] * rank))
    with pytest.raises(gg.ArgumentError, match="positive"):
        gg.compile(mod)
    with pytest.raises(gg.ArgumentError, match="positive"):
        gg.vjp(mod)


def test_an_output_layout_of_its_own_permutes_the_cotangent_alone():
    mod = gg.vjp(program(2, out_layout="NHWC"))
    permuted = []

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.permute_dims"):
            permuted.append(expr.args[0])

    relax.analysis.post_order_visit(mod["main_vjp"], visit)
    (cotangent,) = permuted
    assert cotangent.same_as(mod["main_vjp"].params[-1])


@pytest.mark.parametrize("gradient", [conv_data_gradient, conv_weight_gradient])
def test_a_gradient_without_layouts_has_the_channels_first(gradient):
    """Programs that were written before the ops had layouts stay right."""
    x, w = SHAPES[2]
    ct = (2, 4, 4, 4)
    shapes = {conv_data_gradient: (ct, w, x), conv_weight_gradient: (x, ct, w)}[gradient]
    window = Window((1, 1), (0, 0, 0, 0), (1, 1), 1)

    def build(builder, a, b, with_layouts):
        emitter = Emitter(builder)
        result = gradient(emitter.lift(a), emitter.lift(b), shapes[2], window).expr
        call = builder.lookup_binding(result)
        if with_layouts:
            return result
        given = {key: call.attrs[key] for key in window.attributes()}
        return builder.emit(call_op(call.op, call.args, **given))

    generator = np.random.default_rng(0)
    arrays = [generator.uniform(-1, 1, shape) for shape in shapes[:2]]
    types = [(shape, F64) for shape in shapes[:2]]
    new, old = (
        run(function(partial(build, with_layouts=given), *types), "main", *arrays)[0]
        for given in (True, False)
    )
    assert new.any()
    np.testing.assert_array_equal(new, old)


def test_a_blocked_layout_is_refused():
    def build(builder, x, w):
        return builder.emit(
            nn.conv2d(x, w, data_layout="NCHW4c", kernel_layout="OIHW4o", out_layout="NCHW4c")
        )

    mod = function(build, ((1, 1, 5, 5, 4), F64), ((1, 4, 3, 3, 4), F64))
    with pytest.raises(gg.ArgumentError, match="NCHW4c"):
        gg.compile(mod)
    with pytest.raises(gg.ArgumentError, match="NCHW4c"):
        gg.vjp(mod)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_no_channels_give_zeros(transposed):
    w = (0, 2, 3, 3) if transposed else (2, 0, 3, 3)
    convolution = nn.conv2d_transpose if transposed else nn.conv2d
    mod = function(
        lambda builder, x, w: builder.emit(convolution(x, w)), ((1, 0, 4, 4), F64), (w, F64)
    )
    y = run(mod, "main", np.ones((1, 0, 4, 4)), np.ones(w))[0]
    assert y.shape[1] == 2
    assert not y.any()
