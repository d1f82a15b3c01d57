"""Activations on special values and in half precision, against torch."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tests.peers import peer
from tests.running import F64, function, run

nn = relax.op.nn

ACTIVATIONS = {
    "gelu": (nn.gelu, {}),
    "gelu_tanh": (nn.gelu_tanh, {}),
    "relu": (nn.relu, {}),
    "relu6": (nn.relu6, {}),
    "selu": (nn.selu, {}),
    "silu": (nn.silu, {}),
    "sigmoid": (relax.op.sigmoid, {}),
    "softplus": (nn.softplus, {"beta": 2.0, "threshold": 10.0}),
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DIGITS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def reference(name, x):
    torch = peer("torch")
    functional = torch.nn.functional
    functions = {
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "sigmoid": torch.sigmoid,
        "softplus": lambda x: functional.softplus(x, 2.0, 10.0),
    }
    call = functions[name] if name in functions else getattr(functional, name)
    return call(torch.tensor(x)).numpy()


def program(name, shape, dtype):
    call, attributes = ACTIVATIONS[name]
    return function(lambda builder, x: builder.emit(call(x, **attributes)), (shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(name, dtype):
    x = np.array([-50, -20, -3, -1, -0.1, 0, 0.1, 1, 3, 6, 7, 20, 50, np.inf, np.nan])
    x = x.astype(DTYPES[dtype])
    (y,) = run(program(name, x.shape, dtype), "main", x)
    assert y.dtype == DTYPES[dtype]
    expected = reference(name, x.astype(F64)).astype(DTYPES[dtype]).astype(F64)
    np.testing.assert_allclose(y.astype(F64), expected, rtol=DIGITS[dtype], atol=2e-7)


def test_softplus_in_half_precision():
    mod = function(lambda builder, x: builder.emit(nn.softplus(x)), ((1,), "float16"))
    x = np.array([20.0], "float16")
    assert run(mod, "main", x)[0].tolist() == [20.0]


def test_prelu_with_symbolic_channels():
    n = tvm.tirx.Var("n", "int64")
    mod = function(lambda builder, x, a: builder.emit(nn.prelu(x, a)), ((2, n), F64), ((n,), F64))
    x = np.array([[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]])
    alpha = np.array([0.5, 1.0, 2.0])
    np.testing.assert_array_equal(run(mod, "main", x, alpha)[0], np.where(x > 0, x, alpha * x))
