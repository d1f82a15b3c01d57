"""Two kernels as one: what they are called with, and what is handed over."""

import numpy as np
import tvm
from tvm import relax, te, topi

from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.fusion.merge import Part
from graphgrad.lower.fusion.side_by_side import side_by_side
from tests.lower.kernel_programs import HOST, tensor


def variable(name):
    return relax.Var(name, relax.TensorType([8], "float32"))


def kernel(make, inputs):
    arguments = [tensor(8, name=f"a{i}") for i in range(inputs)]
    return te.create_prim_func([*arguments, *make(*arguments)])


def run(part, *arrays, results):
    """Call a kernel; return what it has written to new tensors."""
    made = [to_tensor(np.zeros(8, "float32")) for _ in range(results)]
    tvm.compile(part.kernel, target=HOST)(*map(to_tensor, arrays), *made)
    return [result.numpy() for result in made]


X, Z = np.arange(8, dtype="float32"), np.full(8, 3, "float32")


def test_arguments_are_passed_once():
    x, z = variable("x"), variable("z")
    both = side_by_side(
        Part(kernel(lambda a, b: [topi.add(a, b)], 2), [x, z]),
        Part(kernel(lambda a, b: [topi.subtract(a, b)], 2), [z, x]),
    )
    assert [a.name for a in both.arguments] == ["x", "z"]
    added, subtracted = run(both, X, Z, results=2)
    np.testing.assert_array_equal(added, X + Z)
    np.testing.assert_array_equal(subtracted, Z - X)


def test_a_new_argument_that_comes_twice_is_passed_once():
    x, z = variable("x"), variable("z")
    both = side_by_side(
        Part(kernel(lambda a: [topi.negative(a)], 1), [x]),
        Part(kernel(lambda a, b: [topi.multiply(a, b)], 2), [z, z]),
    )
    assert [a.name for a in both.arguments] == ["x", "z"]
    np.testing.assert_array_equal(run(both, X, Z, results=2)[1], Z * Z)


def test_what_is_not_kept_is_handed_over_inside():
    x, z, y, unread = (variable(name) for name in ("x", "z", "y", "unread"))
    first = kernel(lambda a: [topi.multiply(a, 2.0), topi.negative(a)], 1)
    second = kernel(lambda a, b: [topi.add(a, b)], 2)
    kept = side_by_side(Part(first, [x]), Part(second, [y, z]), [y, unread], [True, True])
    assert [a.name for a in kept.arguments] == ["x", "z"]
    for array, wanted in zip(run(kept, X, Z, results=3), (2 * X, -X, 2 * X + Z), strict=True):
        np.testing.assert_array_equal(array, wanted)
    inside = side_by_side(Part(first, [x]), Part(second, [y, z]), [y, unread], [False, False])
    np.testing.assert_array_equal(run(inside, X, Z, results=1)[0], 2 * X + Z)
