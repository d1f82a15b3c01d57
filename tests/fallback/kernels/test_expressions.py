"""Kernels carry the tensor expressions that they were made of, wherever they go."""

import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from graphgrad.fallback.kernels.expressions import attached, expressions_of, kernel_of
from graphgrad.fallback.kernels.gradient import gradient_kernels
from graphgrad.fallback.memo import DERIVED


def square(tag=""):
    x = te.placeholder((4, 3), "float32", name="x")
    return kernel_of([x], [te.compute((4, 3), lambda i, j: x(i, j) * x(i, j), "y", tag)])


def nested(levels):
    x = y = te.placeholder((4,), "float32", name="x")
    for _ in range(levels):
        y = sine(y)
    return kernel_of([x], [y])


def sine(x):
    return te.compute(x.shape, lambda i: te.sin(x(i)))


def tag_of(kernel):
    (output,) = expressions_of(kernel, 1).outputs
    return output.op.tag


def gradient(kernel):
    (cotangent,) = gradient_kernels(kernel, 1, 1).cotangents
    return cotangent.func


def test_equal_loops_keep_their_own():
    first, second = square("one"), square("other")
    assert tvm_ffi.structural_equal(first, second)
    assert tag_of(first) == "one" and tag_of(second) == "other"


def test_copies_keep_them():
    kernel = square("kept")
    module = tvm.IRModule({"main": kernel})
    copies = [
        kernel.with_attr("more", 1),
        tvm.ir.load_json(tvm.ir.save_json(kernel)),
        tvm.tirx.transform.BindTarget(tvm.target.Target("llvm"))(module)["main"],
    ]
    assert [tag_of(copy) for copy in copies] == ["kept"] * 3


def test_loops_count_once_they_have_changed():
    kernel = square("before")
    cube = te.placeholder((4, 3), "float32", name="x")
    other = kernel_of([cube], [te.compute((4, 3), lambda i, j: cube(i, j) + cube(i, j))])
    changed = tirx.PrimFunc(other.params, other.body, other.ret_type, attrs=kernel.attrs)
    assert attached(changed) is None
    assert tag_of(changed) != "before"


def test_script_drops_them():
    kernel = square("told").with_attr("global_symbol", "main")
    script = tvm.script.from_source(kernel.script())
    assert attached(script) is None
    assert tvm_ffi.structural_equal(gradient(kernel), gradient(script))


def test_what_was_derived_before_has_no_say():
    DERIVED.clear()
    alone = gradient(square("mine"))
    DERIVED.clear()
    gradient(square("another"))
    after = gradient(square("mine"))
    assert tvm.ir.save_json(alone) == tvm.ir.save_json(after)


@pytest.mark.parametrize("levels", [20, 300])
def test_deep_expressions_are_written_or_left_out(levels):
    kernel = nested(levels)
    assert len(expressions_of(kernel, 1).outputs) == 1
    text = tvm.ir.save_json(kernel)
    assert (attached(tvm.ir.load_json(text)) is not None) == (levels == 20)
