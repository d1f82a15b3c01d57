"""Small buffers of the scope "local" are on the stack."""

import tvm
from tvm import te

import graphgrad as gg
from graphgrad.lower.cpu.stack import keep_on_stack
from tests.lower.kernel_programs import HOST, sums_of_bound_values, tensor


def allocations(func):
    mod = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    return tvm.compile(mod, target=HOST).mod.inspect_source("ll").count("AllocWorkspace")


def test_values_that_are_bound():
    func = gg.fallback.create_prim_func(sums_of_bound_values())
    assert allocations(func) > 0 and allocations(keep_on_stack(func)) == 0


def test_nothing_small_to_move():
    x = tensor(64, 96)
    func = te.create_prim_func([x, te.compute((64, 96), lambda i, j: x[i, j] + 1.0)])
    assert keep_on_stack(func).same_as(func)
