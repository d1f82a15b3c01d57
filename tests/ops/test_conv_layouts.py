"""Convolutions in every layout and dtype."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.ops.legalize import LEGALIZATIONS
from tests.peers import peer
from tests.running import F64, function, run

nn = relax.op.nn

HALF = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NAMES = [f"conv{rank}d{form}" for rank in (1, 2, 3) for form in ("", "_transpose")]


def program(name, x, w, dtype=F64, **attributes):
    convolution = getattr(nn, name)
    return function(
        lambda builder, x, w: builder.emit(convolution(x, w, **attributes)), (x, dtype), (w, dtype)
    )


def ones(name, channels, dtype):
    """Return a call of one position whose result is the number of channels."""
    spatial = (1,) * int(name[4])
    return program(
        name,
        (1, channels, *spatial),
        (1, channels, *spatial) if "_" not in name else (channels, 1, *spatial),
        dtype,
    )


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_adds_up_in_float32(name, dtype):
    mod = ones(name, 4096, dtype)
    arrays = [np.ones([int(d) for d in p.ty.shape], HALF[dtype]) for p in mod["main"].params]
    y = run(mod, "main", *arrays)[0]
    assert y.dtype == HALF[dtype]
    assert float(y.reshape(())) == 4096


UNSERVED = {
    "out_layout": ("conv2d", (1, 2, 4, 4), (3, 2, 3, 3), {"out_layout": "NHWC"}),
    "channels_last": (
        "conv2d_transpose",
        (1, 4, 4, 2),
        (2, 3, 3, 3),
        {"data_layout": "NHWC", "kernel_layout": "IOHW"},
    ),
    "kernel_layout": ("conv1d_transpose", (1, 2, 4), (3, 2, 3), {"kernel_layout": "OIW"}),
}


@pytest.mark.parametrize("case", UNSERVED)
def test_layouts_that_tvm_cannot_emit(case):
    name, x, w, attributes = UNSERVED[case]
    mod = program(name, x, w, **attributes)
    arrays = np.ones(x), np.ones(w)
    assert run(mod, "main", *arrays)[0].shape == tuple(int(d) for d in mod["main"].ret_ty.shape)


def test_a_wider_output_dtype_is_summed_in():
    for name in NAMES:
        spatial = (1,) * int(name[4])
        w = (1, 300, *spatial) if "_" not in name else (300, 1, *spatial)
        mod = program(name, (1, 300, *spatial), w, "int8", out_dtype="int32")
        y = run(mod, "main", np.full((1, 300, *spatial), 100, "int8"), np.full(w, 100, "int8"))[0]
        assert y.dtype == "int32"
        assert int(y.reshape(())) == 3_000_000


LARGE = {1: ((4, 16, 40), (32, 16, 3)), 2: ((2, 16, 10, 9), (32, 16, 3, 3))}
LARGE[3] = ((1, 16, 5, 6, 4), (16, 16, 3, 3, 2))
STRIDES = {1: 2, 2: (1, 2), 3: (2, 1, 1)}


@pytest.mark.parametrize("name", NAMES)
def test_all_three_maps_are_tiled_contractions_and_right(name):
    rank = int(name[4])
    x, w = LARGE[rank]
    w = (x[1], w[0], *w[2:]) if "_" in name else w
    mod = gg.vjp(program(name, x, w, strides=STRIDES[rank]))
    unit = processor_of(gg.target("llvm"))
    for func in lowered(mod).functions.values():
        if isinstance(func, tvm.tirx.PrimFunc):
            text = schedule_loops(func, unit).script()
            assert "T.unroll" in text and "T.vectorized" in text, text
    generator = np.random.default_rng(0)
    arrays = [generator.uniform(-1, 1, shape) for shape in (x, w)]
    torch = peer("torch")
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    function = f"conv_transpose{rank}d" if "_" in name else f"conv{rank}d"
    y = getattr(torch, function)(*tensors, stride=STRIDES[rank])
    ct = generator.uniform(-1, 1, y.shape)
    y.backward(torch.tensor(ct))
    ours = run(mod, "main_vjp", *arrays, ct)
    theirs = [y.detach(), *(tensor.grad for tensor in tensors)]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-11, atol=1e-11)


def lowered(mod):
    return relax.transform.LegalizeOps(LEGALIZATIONS)(mod)
