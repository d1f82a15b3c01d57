"""Sums along memory for neighboring results are transposed in registers, and are the same."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.script import tirx as T

from graphgrad.ir.kernel_structure import stages
from graphgrad.lower.cpu.contraction.replace import blocks_of
from graphgrad.lower.cpu.dot_products import nest_of
from tests.lower.kernel_programs import UNIT, run, tensor


def banded(length, band, width, dtype="float32"):
    q, k = tensor(3, length, width, dtype=dtype), tensor(3, length + band - 1, width, dtype=dtype)
    c = te.reduce_axis((0, tirx.IntImm("int64", width)), "c")
    y = te.compute(
        (3, length, band),
        lambda h, i, w: te.sum(q[h, i, c] * k[h, i + w, c], axis=c),
        name="products",
    )
    runs = run([q, k], [y], make=te.create_prim_func)
    runs.agree()
    return runs


@pytest.mark.parametrize("band", [16, 33, 65])
@pytest.mark.parametrize("width", [16, 64, 512])
def test_products_of_a_band(band, width):
    assert "Shuffle" in banded(40, band, width).text


def test_float64():
    assert "Shuffle" in banded(64, 33, 64, "float64").text


def test_a_short_band_stays():
    assert "Shuffle" not in banded(512, 5, 64).text


def test_rows_that_the_terms_do_not_fill_stay():
    assert "Shuffle" not in banded(64, 33, 50).text


def test_several_reduced_axes():
    x, y = tensor(24, 6, 32), tensor(56, 6, 32)
    a = te.reduce_axis((0, tirx.IntImm("int64", 6)), "a")
    c = te.reduce_axis((0, tirx.IntImm("int64", 32)), "c")
    sums = te.compute(
        (24, 33), lambda i, w: te.sum(x[i, a, c] * y[i + w, a, c], axis=[a, c]), name="sums"
    )
    runs = run([x, y], [sums])
    runs.agree()
    assert "Shuffle" in runs.text and np.isfinite(runs.scheduled[0]).all()


def test_a_map_behind():
    """It is a stage of its own."""
    x, y = tensor(2048, 32), tensor(2112, 32)
    c = te.reduce_axis((0, tirx.IntImm("int64", 32)), "c")
    sums = te.compute((2048, 33), lambda i, w: te.sum(x[i, c] * y[i + w, c], axis=c), name="sums")
    masked = te.compute(
        (2048, 33),
        lambda i, w: te.if_then_else(i + w < 2048, sums[i, w] * 0.5, -1.0),
        name="masked",
    )
    runs = run([x, y], [masked])
    runs.agree()
    assert "Shuffle" in runs.text


def test_sums_that_begin_elsewhere_stay():
    """In TVMScript a sum may begin at any number."""

    @T.prim_func(s_tir=True)
    def sums(
        x: T.Buffer((256, 32), "float32"),
        y: T.Buffer((320, 32), "float32"),
        z: T.Buffer((256, 33), "float32"),
    ):
        for i, w, c in T.grid(256, 33, 32):
            with T.sblock("sums"):
                vi, vw, vc = T.axis.remap("SSR", [i, w, c])
                with T.init():
                    z[vi, vw] = T.float32(1)
                z[vi, vw] = z[vi, vw] + x[vi, vc] * y[vi + vw, vc]

    runs = run([tensor(256, 32), tensor(320, 32)], [tensor(256, 33)], make=lambda _: sums)
    runs.agree()
    assert "Shuffle" not in runs.text


def test_a_value_that_is_bound_in_a_sum():
    @T.prim_func(s_tir=True)
    def sums(
        x: T.Buffer((256, 32), "float32"),
        y: T.Buffer((320, 32), "float32"),
        z: T.Buffer((256, 33), "float32"),
    ):
        for i, w, c in T.grid(256, 33, 32):
            with T.sblock("sums"):
                vi, vw, vc = T.axis.remap("SSR", [i, w, c])
                with T.init():
                    z[vi, vw] = T.float32(0)
                both: T.let[T.float32] = x[vi, vc] * y[vi + vw, vc]
                z[vi, vw] = z[vi, vw] + both * both

    (stage,) = stages(sums)
    assert nest_of(stage, blocks_of(sums.body), UNIT) is None
    runs = run([tensor(256, 32), tensor(320, 32)], [tensor(256, 33)], make=lambda _: sums)
    runs.agree()
