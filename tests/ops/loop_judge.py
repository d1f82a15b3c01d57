"""Compiled functions beside PyTorch: results, and gradients by all floats, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
_SLACK = 20.0
"""Of a move: 20 times that of a smooth function is within the tolerance."""


class DisagreementError(Exception):
    """A result or gradient that is wrong."""


def judge(
    mod: tvm.IRModule,
    arrays: Sequence[np.ndarray],
    twin: Function,
    alone: bool = True,
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

    Raises
    ------
    DisagreementError
        Unless PyTorch's results move as far when the arrays move by their last digits.
    """
    dtype = dtype_of(arrays)
    given = [*arrays, *_cotangents(results(twin, arrays), dtype)]
    both = gg.vjp(mod)
    if not alone:
        del both["main"]
    machine = relax.VirtualMachine(gg.compile(both), tvm.cpu())
    tensors = list(map(to_tensor, given))
    outputs, gradients = map(flat, machine["main_vjp"](*tensors))
    compute = partial(results, _differentiated(twin, len(arrays)))
    count = len(outputs)
    _check("result", outputs, lambda moved: compute(moved)[:count], given, dtype)
    _check("gradient", gradients, lambda moved: compute(moved)[count:], given, dtype)
    if alone:
        outputs = flat(machine["main"](*tensors[: len(arrays)]))
        _check("result alone", outputs, partial(results, twin), arrays, dtype)


def gradient(
    mod: tvm.IRModule, arrays: Sequence[np.ndarray], twin: Function
) -> tuple[tvm.IRModule, list[np.ndarray], Function]:
    """Return results and gradients of a function, of arrays and cotangents, as `judge` takes it."""
    both = gg.vjp(mod)
    both["main"] = both["main_vjp"].with_attr("global_symbol", "main")
    del both["main_vjp"]
    cotangents = _cotangents(results(twin, arrays), dtype_of(arrays))
    return both, [*arrays, *cotangents], _differentiated(twin, len(arrays))


def _differentiated(twin: Function, arity: int) -> Function:
    """What a function of some arguments computes, and its gradients, given cotangents as well."""

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            # Floats of which there is no graph yet begin one.
            given = [
                t.clone().requires_grad_() if t.is_floating_point() and not t.requires_grad else t
                for t in tensors[:arity]
            ]
            wrt = [tensor for tensor in given if tensor.is_floating_point()]
            outputs = list(twin(*given))
            floats = [output for output in outputs if output.is_floating_point()]
            pairs = zip(floats, tensors[arity:], strict=True)
            loss = sum((output * cotangent).sum() for output, cotangent in pairs)
            found = torch.autograd.grad(
                loss, wrt, create_graph=True, allow_unused=True, materialize_grads=True
            )
        return [*outputs, *found]

    return run


def results(twin: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a function computes in float64."""
    with torch.no_grad():
        return [result.detach().numpy() for result in twin(*map(_tensor, arrays))]


def _check(
    what: str,
    ours: Sequence[np.ndarray],
    compute: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    arrays: Sequence[np.ndarray],
    dtype: str,
) -> None:
    """Compare arrays with what the twin computes; where they differ, also with how far it moves."""
    theirs = compute(arrays)
    try:
        compare(what, ours, theirs, dtype)
    except DisagreementError:
        compare(what, ours, theirs, dtype, _moves(compute, arrays, theirs, dtype))


def compare(
    what: str,
    ours: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    dtype: str,
    moves: Sequence[np.ndarray | float] = (),
) -> None:
    """Raise `DisagreementError` where arrays differ by more than the tolerance and their moves."""
    if [a.shape for a in ours] != [b.shape for b in theirs]:
        shapes = [[array.shape for array in arrays] for arrays in (ours, theirs)]
        raise DisagreementError(f"{what}: shapes {shapes[0]}, expected {shapes[1]}")
    # What is much smaller than all the rest may be its rounding errors.
    floats = [b for b in theirs if b.dtype.kind == "f"]
    least = 1e-3 * max([1.0, *(float(np.abs(b).max(initial=0)) for b in floats)])
    moves = moves or [0.0] * len(ours)
    for number, (a, b, move) in enumerate(zip(ours, theirs, moves, strict=True)):
        if str(a.dtype) != (dtype if b.dtype.kind == "f" else str(b.dtype)):
            raise DisagreementError(f"{what} {number} is of {a.dtype}")
        scale = max(float(np.abs(b).max(initial=0)), least) if b.dtype.kind == "f" else 0.0
        gap = np.abs(a.astype("float64") - b)
        wrong = ~(gap <= TOLERANCES[dtype] * scale + _SLACK * move)  # NaN is wrong as well
        if wrong.any():
            place = np.unravel_index(np.argmax(np.where(wrong, gap, -1.0)), gap.shape)
            place = tuple(map(int, place))
            raise DisagreementError(
                f"{what} {number} at {place} is {a[place]}, expected {b[place]}; {wrong.sum()} of "
                f"{gap.size} are wrong, the largest is {scale:.3g}"
            )


def _moves(
    compute: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    arrays: Sequence[np.ndarray],
    theirs: Sequence[np.ndarray],
    dtype: str,
) -> list[np.ndarray]:
    """How far each element moves at most when the arrays move by their last digits.

    It is far where a sum is chaotic, or a kink or a maximum is so near that rounding decides.
    """
    generator = np.random.default_rng(0)
    moves = [np.zeros(b.shape) for b in theirs]
    for _ in range(JITTERS):
        moved = [
            a.astype("float64") * (1 + JITTER[dtype] * generator.standard_normal(a.shape))
            if a.dtype.kind == "f"
            else a
            for a in arrays
        ]
        for move, there, here in zip(moves, compute(moved), theirs, strict=True):
            np.maximum(move, np.abs(there.astype("float64") - here), out=move)
    return moves


def dtype_of(arrays: Sequence[np.ndarray]) -> str:
    """Return the dtype of those arrays that are of floats."""
    return next(str(array.dtype) for array in arrays if array.dtype.kind == "f")


def _tensor(array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    return tensor.double() if tensor.is_floating_point() else tensor


def _cotangents(outputs: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    floats = [output for output in outputs if output.dtype.kind == "f"]
    return [generator.uniform(-1, 1, output.shape).astype(dtype) for output in floats]
