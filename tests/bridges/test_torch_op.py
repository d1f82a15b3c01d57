"""Kernels as ops of PyTorch: values, gradients to order two, bad input."""

import pytest
from tvm import te
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.errors import ArgumentError, InputError
from graphgrad.registry import rule
from tests.peers import peer

torch = peer("torch")
F64 = torch.float64


def softsign(x, scale, power=1):
    """Products with a row, bent."""
    assert power == 1
    return te.compute(x.shape, lambda i, j: x[i, j] / (1.0 + te.abs(x[i, j] * scale[j])))


@T.prim_func(s_tir=True)
def moments(x: T.handle, sums: T.handle, squares: T.handle):
    m, n = T.int64(), T.int64()
    X, S = T.match_buffer(x, (m, n), "float64"), T.match_buffer(sums, (m,), "float64")
    Q = T.match_buffer(squares, (m,), "float64")
    for i, j in T.grid(m, n):
        with T.sblock("moments"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float64(0)
                Q[vi] = T.float64(0)
            S[vi] = S[vi] + X[vi, vj]
            Q[vi] = Q[vi] + X[vi, vj] * X[vi, vj]


def draw(*shape, dtype=F64, **options):
    return torch.randn(*shape, dtype=dtype, generator=torch.manual_seed(0), **options)


@pytest.fixture(scope="module")
def expressions():
    return gg.torch_op("graphgrad_tests::softsign", softsign)


@pytest.fixture(scope="module")
def script():
    return gg.torch_op("graphgrad_tests::moments", moments, outputs=2)


def check(op, *arguments):
    assert torch.autograd.gradcheck(op, arguments)
    assert torch.autograd.gradgradcheck(op, arguments)
    torch.library.opcheck(op, arguments)


def test_tensor_expressions(expressions):
    x, scale = draw(3, 2, requires_grad=True), draw(2, requires_grad=True)
    torch.testing.assert_close(expressions(x, scale), x / (1 + (x * scale).abs()))
    check(expressions, x, scale)
    assert torch.ops.graphgrad_tests.softsign(x, scale).shape == (3, 2)


def test_each_dtype_has_a_kernel(expressions):
    x, scale = draw(4, 2, dtype=torch.float32), draw(2, dtype=torch.float32)
    given = expressions(x, scale)
    assert given.dtype == torch.float32
    torch.testing.assert_close(given, x / (1 + (x * scale).abs()))


def test_tvmscript_with_two_results(script):
    x = draw(3, 4, requires_grad=True)
    for given, expected in zip(script(x), (x.sum(1), (x * x).sum(1)), strict=True):
        torch.testing.assert_close(given, expected)
    check(script, x)


def test_a_result_without_cotangent(script):
    x = draw(2, 5, requires_grad=True)
    script(x)[1].sum().backward()
    torch.testing.assert_close(x.grad, 2 * x)


@pytest.mark.parametrize("arguments, message", [
    (("softsign", softsign), "'softsign' is none for an op"),
    (("mine::op", 3), "expected a function of te.Tensors or a PrimFunc, given 3"),
    (("mine::op", lambda: 3), "takes no tensor"),
    (("mine::op", moments, 3), "at least one more than the 3 that it writes"),
    (("mine::op", moments, 0), "outputs=0"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    *arguments, outputs = (*arguments, 1)[:3]
    with pytest.raises(ArgumentError, match=message):
        gg.torch_op(*arguments, outputs=outputs)


def test_bad_input(script):
    with pytest.raises(InputError, match="input 'X': expected dtype float64, given float32"):
        script(draw(3, 4, dtype=torch.float32))
    with pytest.raises(InputError, match=r"input 'X': expected shape \(m, n\)"):
        script(draw(3))


def test_a_registered_gradient_counts_before_a_derived_one(monkeypatch):
    monkeypatch.setitem(rule._FUNCTION_RULES, "user", {})

    @gg.register_gradient("tripled")
    def gradient(inputs, outputs, cotangents, attrs):
        return [7.0 * cotangents[0]]

    def kernel(x):
        return te.compute(x.shape, lambda i: 3.0 * x[i])

    x = draw(4, requires_grad=True)
    gg.torch_op("graphgrad_tests::tripled", kernel)(x).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 7.0, dtype=F64))
