"""Kernels in which inlining has bound a variable twice are scheduled all the same."""

import pytest
import tvm
from tvm import te, tirx
from tvm.ir import prim
from tvm.s_tir import Schedule

from graphgrad.ir.visits import nodes_in
from graphgrad.lower.kernels.unique_bindings import bind_anew, bind_each_once, schedule_of
from tests.lower.kernel_programs import run, tensor


def twice():
    """A tensor, and a map of which each element reads one bound value at two places."""
    x = tensor(256, 96)
    var = tirx.Var("v", "float32")

    def element(i, j):
        bound = tirx.Let(var, x[i, j] * 0.5, var * var + var)
        return tirx.Select(bound > 0.0, te.exp(bound), bound)

    return x, te.compute((256, 96), element, name="y")


def test_each_binding_has_a_variable_of_its_own():
    func = te.create_prim_func(list(twice()))
    with pytest.raises(tvm.error.InternalError, match="multiple definitions"):
        Schedule(func)  # or else this tests something else
    bound = [let.var for let in nodes_in(bind_each_once(func).body, prim.Let)]
    assert len(bound) == 3
    assert not any(a.same_as(b) for n, a in enumerate(bound) for b in bound[:n])
    schedule_of(func)


def test_a_binding_inside_another_of_the_same_variable():
    x = tensor(8, 16)
    var = tirx.Var("v", "float32")

    def element(i, j):
        return tirx.Let(var, x[i, j], var + tirx.Let(var, x[i, j] * 2.0, var * var))

    y = te.compute((8, 16), element, name="y")
    schedule_of(te.create_prim_func([x, y]))
    run([x], [y]).agree()


def test_it_is_vectorized():
    x, y = twice()
    result = run([x], [y])
    result.agree()
    assert result.changed and result.vectors


def test_a_kernel_without_such_bindings_stays_as_it_is():
    x = tensor(4, 5)
    func = te.create_prim_func([x, te.compute((4, 5), lambda *at: te.exp(x(*at)))])
    assert bind_each_once(func).same_as(func)


def test_kernels_that_came_from_one_bind_apart():
    """The writer of CUDA's source has one table of bindings for all kernels."""
    func = te.create_prim_func(list(twice()))
    bound = [
        let.var
        for kernel in (bind_anew(func), bind_anew(func))
        for let in nodes_in(kernel.body, prim.Let)
    ]
    assert len(bound) == 6
    assert not any(a.same_as(b) for n, a in enumerate(bound) for b in bound[:n])
