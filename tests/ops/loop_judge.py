"""Compiled functions beside PyTorch: results, and gradients by all floats, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor

Function = Callable[..., Sequence[torch.Tensor]]

TOLERANCES = {"float64": 1e-9, "float32": 2e-4}
"""Of the largest element."""

JITTERS = 4
JITTER = {"float64": 1e-10, "float32": 1e-6}


class DisagreementError(Exception):
    """A result or gradient that is wrong."""


def judge(
    mod: tvm.IRModule,
    arrays: Sequence[np.ndarray],
    twin: Function,
    alone: bool = True,
    target: Any = "llvm",
) -> None:
    """Compare a module's ``main`` and its gradient with a function of PyTorch.

    Parameters
    ----------
    mod : IRModule
    arrays : sequence of arrays
        All floats of one dtype.
    twin : callable
        The function; it is given the same numbers in float64.
    alone : bool
        Whether the function is also compiled without its gradient.
    target : str or dict

    Raises
    ------
    DisagreementError
        Unless PyTorch's gradient moves as far when the arrays move by their last digits.
    """
    expected = results(twin, arrays)
    dtype = next(str(array.dtype) for array in arrays if array.dtype.kind == "f")
    cotangents = _cotangents(expected, dtype)
    both = gg.vjp(mod)
    if not alone:
        del both["main"]
    machine = relax.VirtualMachine(gg.compile(both, target), tvm.cpu())
    tensors = [to_tensor(array) for array in (*arrays, *cotangents)]
    outputs, gradients = machine["main_vjp"](*tensors)
    compare("result", flat(outputs), expected, dtype)
    if alone:
        compare("result alone", flat(machine["main"](*tensors[: len(arrays)])), expected, dtype)
    ours, theirs = flat(gradients), gradients_of(twin, arrays, cotangents)
    try:
        compare("gradient", ours, theirs, dtype)
    except DisagreementError:
        if not _is_rough(ours, theirs, twin, arrays, cotangents, dtype):
            raise


def results(twin: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a function computes in float64."""
    with torch.no_grad():
        return [result.numpy() for result in twin(*map(_tensor, arrays))]


def gradients_of(
    twin: Function, arrays: Sequence[np.ndarray], cotangents: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return PyTorch's gradients by all floats, in float64."""
    tensors = list(map(_tensor, arrays))
    floats = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
    outputs = [output for output in twin(*tensors) if output.is_floating_point()]
    loss = sum((o * _tensor(c)).sum() for o, c in zip(outputs, cotangents, strict=True))
    found = torch.autograd.grad(loss, floats, allow_unused=True, materialize_grads=True)
    return [gradient.numpy() for gradient in found]


def compare(what: str, ours: Sequence[Any], theirs: Sequence[np.ndarray], dtype: str) -> None:
    """Raise `DisagreementError` where arrays differ."""
    if len(ours) != len(theirs):
        raise DisagreementError(f"{len(ours)} arrays of {what}, expected {len(theirs)}")
    # What is much smaller than all the rest may be its rounding errors.
    floats = [b for b in theirs if b.dtype.kind == "f"]
    least = 1e-3 * max([1.0, *(float(np.abs(b).max(initial=0)) for b in floats)])
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.shape != b.shape:
            raise DisagreementError(f"{what} {number} has shape {a.shape}, expected {b.shape}")
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                raise DisagreementError(f"{what} {number} is {a}, expected {b}")
            continue
        if str(a.dtype) != dtype:
            raise DisagreementError(f"{what} {number} is of {a.dtype}, expected {dtype}")
        scale = max(float(np.abs(b).max(initial=0)), least)
        gap = np.abs(a - b)
        if not (gap <= TOLERANCES[dtype] * scale).all():  # NaN is wrong as well
            place = np.unravel_index(np.argmax(np.nan_to_num(gap, nan=np.inf)), gap.shape)
            place = tuple(map(int, place))
            count = int((~(gap <= TOLERANCES[dtype] * scale)).sum())
            raise DisagreementError(
                f"{what} {number} at {place} is {a[place]}, expected {b[place]}; {count} of "
                f"{gap.size} are wrong, the largest is {scale:.3g}"
            )


def _is_rough(
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    twin: Function,
    arrays: Sequence[np.ndarray],
    cotangents: Sequence[np.ndarray],
    dtype: str,
) -> bool:
    """Whether moving the arrays a little moves the twin's gradient half as far as ours is off."""
    generator = np.random.default_rng(0)
    gaps = [np.abs(a - b).max(initial=0) for a, b in zip(ours, theirs, strict=True)]
    worst = int(np.argmax(gaps))
    for _ in range(JITTERS):
        moved = [
            a.astype("float64") * (1 + JITTER[dtype] * generator.standard_normal(a.shape))
            if a.dtype.kind == "f"
            else a
            for a in arrays
        ]
        there = gradients_of(twin, moved, cotangents)[worst]
        if np.abs(there - theirs[worst]).max(initial=0) > gaps[worst] / 2:
            return True
    return False


def _tensor(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    return tensor.double() if tensor.is_floating_point() else tensor


def _cotangents(outputs: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    floats = [output for output in outputs if output.dtype.kind == "f"]
    return [generator.uniform(-1, 1, output.shape).astype(dtype) for output in floats]
