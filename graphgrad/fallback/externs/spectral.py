"""Fourier transforms, as the sums that they are."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import te, tirx, topi
from tvm.ir import prim

from ..kinds import Kind, marked
from ..walk import Expr, called
from .match import nodes, same_stage


def dft(op: Any) -> list[te.Tensor] | None:
    """y[n] = c · Σ x[k] · exp(∓ 2πi · n · k / N)"""
    real, imaginary = op.inputs
    for inverse in (False, True):
        if same_stage(op, topi.signal.dft(real, imaginary, inverse)):
            return [_dft_part(real, imaginary, inverse, number) for number in range(2)]
    return None


def _dft_part(real: te.Tensor, imaginary: te.Tensor, inverse: bool, number: int) -> te.Tensor:
    count = real.shape[-1]
    k = te.reduce_axis((0, count), "k")
    dtype = str((real, imaginary)[number].dtype)

    def body(*position: Any) -> Expr:
        *at, n = position
        # Angles are float32, whatever the data are: so does the forward pass compute them.
        angle = (2 if inverse else -2) * math.pi * n / count * k
        cos, sin = tirx.cos(angle).astype(dtype), tirx.sin(angle).astype(dtype)
        x, y = real(*at, k), imaginary(*at, k)
        term = x * sin + y * cos if number else x * cos - y * sin
        return te.sum(term / count if inverse else term, axis=k)

    return te.compute(real.shape, body, name=f"dft_{number}", attrs=marked(Kind.REDUCE))


def stft(op: Any) -> list[te.Tensor] | None:
    """y[r, c] = Σ window[j] · x[c · hop + j] · exp(- 2πi · r · j / length), normalized by 1/√n"""
    data, window = op.inputs
    shape = op.output(0).shape
    # The last loop is that over the window.
    length = nodes(op.body, tirx.For)[-1].extent
    normalized = nodes(op.body, tirx.IfThenElse)[0].condition
    roots = [call for call in nodes(op.body, tvm.ir.Call) if called(call) == "tirx.sqrt"]
    count = int(roots[0].args[0].value)
    # The hop is one of the constants in the loops; the match tells which.
    for hop in sorted({int(constant.value) for constant in nodes(op.body, prim.IntImm)}):
        candidate = topi.signal.stft(data, count, hop, length, window, normalized, True, shape)
        if same_stage(op, candidate):
            return [_stft(data, window, shape, length, hop, count if normalized.value else 1)]
    return None


def _stft(
    data: te.Tensor, window: te.Tensor, shape: Any, length: Any, hop: int, count: int
) -> te.Tensor:
    j = te.reduce_axis((0, length), "j")
    scale = 1.0 / math.sqrt(count)

    def body(batch: Any, row: Any, column: Any, part: Any) -> Expr:
        angle = 2 * math.pi * row * j / length  # float32, as in the forward pass
        wave = tirx.Select(tirx.EQ(part, 0), tirx.cos(angle), -tirx.sin(angle)) * scale
        return te.sum(window[j] * data[batch, column * hop + j] * wave, axis=j)

    return te.compute(shape, body, name="stft_sum", attrs=marked(Kind.REDUCE))
