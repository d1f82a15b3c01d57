"""Kernels of triangular structure, in place: lifted, differentiated, and compared with PyTorch."""

import numpy as np
import pytest
from tvm import relax

import graphgrad as gg
from tests.fallback.lift import factorizations as kernels
from tests.fallback.lift.agreement import agrees
from tests.fallback.lift.factorizations import FACTORIZATIONS
from tests.labels import label
from tests.peers import peer
from tests.running import run


def arrays_of(func, count):
    """Values for the first parameters: square matrices are positive definite."""
    generator = np.random.default_rng(0)
    arrays = []
    for param in func.params[:count]:
        shape = [int(extent) for extent in param.shape]
        array = generator.standard_normal(shape)
        if len(shape) > 1 and shape[-1] == shape[-2]:
            array = array @ np.swapaxes(array, -1, -2) / shape[-1] + 2 * np.eye(shape[-1])
        arrays.append(array)
    if func is kernels.tridiagonal:
        arrays[1] += 6
    return arrays


@pytest.mark.parametrize("func", FACTORIZATIONS, ids=label)
def test_values_and_gradients(func):
    inputs, inplace = FACTORIZATIONS[func]
    arrays = arrays_of(func, inputs + inplace)
    agrees(func, inputs, arrays, inplace=range(inputs, inputs + inplace))


def called(func):
    """A module that calls a kernel; in place where it overwrites parameters."""
    inputs, inplace = FACTORIZATIONS[func]
    types = [relax.TensorType([int(e) for e in p.shape], str(p.dtype)) for p in func.params]
    params = [relax.Var(f"x{n}", ty) for n, ty in enumerate(types[: inputs + inplace])]
    results = types[inputs:] if len(types) > inputs + 1 else types[inputs]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        kernel = builder.add_func(func, "kernel")
        arguments = relax.Tuple(params)
        if inplace:
            places = [*range(inputs, inputs + inplace), *[-1] * (len(types) - inputs - inplace)]
            call = relax.op.call_tir_inplace(kernel, arguments, places, results)
        else:
            call = relax.call_tir(kernel, arguments, results)
        builder.emit_func_output(builder.emit(call))
    return builder.get()


@pytest.mark.parametrize("func", [kernels.cholesky, kernels.lu, kernels.solve], ids=label)
def test_order_two_in_a_program(func):
    gg.check_grads(called(func), arrays_of(func, sum(FACTORIZATIONS[func])), order=2)


def by_torch(torch, func, a):
    """What a kernel computes, by PyTorch's function for it."""
    if func is kernels.cholesky_of_many:
        return torch.linalg.cholesky(torch.tril(a) + torch.tril(a, -1).mT)
    if func is kernels.lu_pivoted:
        return torch.linalg.lu_factor(a)[0]
    if func is kernels.inverse:
        return torch.linalg.inv(a)
    q, r = torch.linalg.qr(a)
    signs = torch.sign(torch.diagonal(r))
    return q * signs, r * signs[:, None]


@pytest.mark.parametrize(
    "func",
    [kernels.cholesky_of_many, kernels.lu_pivoted, kernels.inverse, kernels.gram_schmidt],
    ids=label,
)
def test_values_and_gradients_are_those_of_torch(func):
    torch = peer("torch")
    (array,) = arrays_of(func, 1)
    if func is kernels.lu_pivoted:
        array = array[[2, 0, 3, 1]]  # so that rows change places
    a = torch.tensor(array, requires_grad=True)
    theirs = by_torch(torch, func, a)
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    generator = np.random.default_rng(1)
    cotangents = [generator.standard_normal(value.shape) for value in theirs]
    sum(
        (value * torch.tensor(ct)).sum() for value, ct in zip(theirs, cotangents, strict=True)
    ).backward()
    *values, gradient = run(gg.vjp(called(func)), "main_vjp", array, *cotangents)
    for value, their_value in zip(values, theirs, strict=True):
        np.testing.assert_allclose(value, their_value.detach().numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient, a.grad.numpy(), rtol=1e-8, atol=1e-10)
