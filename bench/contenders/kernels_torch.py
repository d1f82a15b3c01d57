"""Kernels of PyTorch, called as its eager mode calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from kernel_cases import Case, Convolution, Product

INCLUDES = "conv2d, convolution_backward for one operand, matmul; out of place"


def prepare(
    case: Case, threads: int, channels_last: bool = False
) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """Return what runs a case, and what returns its values.

    Parameters
    ----------
    case : Case
    threads : int
    channels_last : bool
        How the tensors of convolutions lie in memory; else as NCHW.
    """
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(array) for array in case.inputs()]
    if isinstance(case.work, Product):
        run = _product(case, case.work, tensors)
    else:
        order = torch.channels_last if channels_last else torch.contiguous_format
        tensors = [tensor.contiguous(memory_format=order) for tensor in tensors]
        run = _convolution(case, case.work, tensors, order)
    return run, lambda: run().contiguous().numpy()


def _convolution(
    case: Case, work: Convolution, tensors: list[torch.Tensor], order: torch.memory_format
) -> Callable[[], torch.Tensor]:
    window = {"stride": work.stride, "padding": work.padding, "groups": work.groups}
    if case.part == "forward":
        x, w = tensors
        return lambda: torch.nn.functional.conv2d(x, w, **window)
    # The operand whose gradient is asked for is read for its shape alone.
    shape = work.shapes[case.writes]
    given = dict(zip(case.reads, tensors, strict=True))
    given[case.writes] = torch.empty(shape).contiguous(memory_format=order)
    wanted = [part == case.part for part in ("data", "weight")]
    sides = [[work.stride] * 2, [work.padding] * 2, [1, 1], False, [0, 0], work.groups]
    arguments = [given["result"], given["data"], given["weight"], None, *sides, [*wanted, False]]
    index = wanted.index(True)
    return lambda: torch.ops.aten.convolution_backward(*arguments)[index]


def _product(case: Case, work: Product, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    given = dict(zip(case.reads, tensors, strict=True))
    turned = dict(zip(("data", "weight"), (letter == "T" for letter in work.form), strict=True))
    operands = {n: given[n].mT if turned[n] else given[n] for n in turned if n in given}
    if case.part == "forward":
        left, right = operands.values()
        return lambda: left @ right
    # The gradient of the operand as it is multiplied is ct · rightᵀ or leftᵀ · ct; of one that was
    # transposed first, its transpose.
    ct, is_turned = given["result"], turned[case.part]
    (other,) = operands.values()
    if case.part == "data":
        return (lambda: other @ ct.mT) if is_turned else (lambda: ct @ other.mT)
    return (lambda: ct.mT @ other) if is_turned else (lambda: other.mT @ ct)
