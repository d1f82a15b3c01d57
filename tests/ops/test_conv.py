"""The gradients of convolutions as ops: their identity, their closure, and empty batches."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
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
    return {op for op in found if "conv" in op}


def program(rank, transposed=False, x_shape=None, **attributes):
    x, w = SHAPES[rank]
    w = (x[1], w[0], *w[2:]) if transposed else w
    convolution = getattr(nn, f"conv{rank}d" + "_transpose" * transposed)
    return function(
        lambda builder, x, w: builder.emit(convolution(x, w, **attributes)),
        (x_shape or x, F64),
        (w, F64),
    )


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("rank", SHAPES)
def test_derivatives_of_every_order_are_the_same_three_maps(rank, transposed):
    mod = gg.vjp(program(rank, transposed))
    first = called(mod, "main_vjp")
    plain, data, weight = (
        f"relax.nn.conv{rank}d",
        "graphgrad.conv_data_gradient",
        "graphgrad.conv_weight_gradient",
    )
    forward = plain + "_transpose" * transposed
    assert first - {forward} == {weight, plain if transposed else data}
    second = called(gg.vjp(mod, "main_vjp"), "main_vjp_vjp")
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
