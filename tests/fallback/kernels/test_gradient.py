"""Derivations of kernels' gradients: what they remember of tensors."""

from tvm import te, tirx

from graphgrad.fallback.kernels.gradient import Derivation
from graphgrad.fallback.lift.prim_func import TensorProgram
from graphgrad.fallback.walk import tensor_key

COUNT = 30


def test_no_new_tensor_is_taken_for_a_cotangent_that_nothing_reads():
    # A key is an address, which is another tensor's as soon as nothing holds the first one.
    x = te.placeholder((4,), "float32", name="x")
    one = tirx.const(1.0, "float32")
    outputs = [te.compute((4,), lambda i: x[i] * x[i], name="square")]
    outputs += [te.compute((4,), lambda i: one, name="one") for _ in range(COUNT)]
    derivation = Derivation(TensorProgram([x, *[None] * len(outputs)], outputs), 1)
    derivation.kernels()
    others = [te.placeholder((4,), "float32") for _ in range(60 * COUNT)]
    assert not any(tensor_key(tensor) in derivation._sources for tensor in others)
