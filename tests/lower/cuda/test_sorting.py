"""Sorting of tensor expressions without the host's library, in the order that it gives."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi

from graphgrad.fallback.kernels.expressions import kernel_of
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.cuda.sorting import sort_on_device
from tests.lower.kernel_programs import HOST, tensor

X = np.random.default_rng(0).integers(-3, 3, (5, 7)).astype("float32")  # with ties

SORTING = {
    "sort": lambda x: topi.sort(x, -1),
    "sort-descending": lambda x: topi.sort(x, 0, is_ascend=False),
    "argsort": lambda x: topi.argsort(x, axis=0, dtype="int32"),
    "argsort-descending": lambda x: topi.argsort(x, axis=1, is_ascend=False, dtype="int64"),
    "top-k": lambda x: topi.topk(x, 3, 1, "both", False, "int64"),
    "top-k-indices": lambda x: topi.topk(x, 2, 0, "indices", True, "int32"),
    "after-and-before-others": lambda x: topi.exp(topi.sort(topi.negative(x), 1)),
}


def module(build):
    x = tensor(*X.shape)
    outputs = build(x)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    kernel = kernel_of([x], outputs).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": kernel}), outputs


@pytest.mark.parametrize("name", SORTING)
def test_order(name):
    mod, outputs = module(SORTING[name])
    own = sort_on_device(mod)
    assert "tvm.contrib.sort" in mod.script() and "tvm.contrib.sort" not in own.script()
    results = []
    for each in (mod, own):
        shapes = [[int(n) for n in output.shape] for output in outputs]
        held = [
            to_tensor(np.zeros(shape, str(output.dtype)))
            for shape, output in zip(shapes, outputs, strict=True)
        ]
        tvm.compile(each, HOST)["main"](to_tensor(X), *held)
        results.append([tensor.numpy() for tensor in held])
    for expected, given in zip(*results, strict=True):
        np.testing.assert_array_equal(given, expected)


def test_not_a_number_comes_last():
    mod, _ = module(SORTING["sort"])
    given, result = X.copy(), to_tensor(np.zeros_like(X))
    given[:, 2] = np.nan
    tvm.compile(sort_on_device(mod), HOST)["main"](to_tensor(given), result)
    np.testing.assert_array_equal(result.numpy(), np.sort(given, 1))


def other_function(x):
    def called(ins, outs):
        return tirx.call_packed("my.sort", ins[0], outs[0], 1, True)

    return te.extern(x.shape, [x], called, dtype="float32", tag="sort_cpu")


@pytest.mark.parametrize("build", [topi.exp, other_function], ids=["none", "another function"])
def test_what_does_not_sort_is_left_alone(build):
    mod, _ = module(build)
    assert tvm_ffi.structural_equal(sort_on_device(mod), mod)
