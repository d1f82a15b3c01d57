"""Which calls of flat maps may be joined: those whose tensors are known to be the kernel's."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from graphgrad.lower.fusion.horizontal.calls import Calls
from graphgrad.lower.fusion.horizontal.maps import mark_flat_maps
from graphgrad.lower.fusion.horizontal.table_rows import TABLE_ROWS
from graphgrad.memory.alias import Module
from tests.lower.programs import machine, random_tensors, tensor_type


def kernel(function, length=8):
    """Return a kernel of one map, as a program may bring it along."""
    x = te.placeholder((tirx.IntImm("int64", length),), "float32", "x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: function(x(i)))])


DOUBLE, MORE = kernel(lambda value: value * 2.0), kernel(lambda value: value + 2.0)


def called(*types, **in_place):
    """Return a module of two calls that take the first parameter."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", params):
        results = []
        for func, name in ((DOUBLE, "double"), (MORE, "more")):
            variable = builder.add_func(func, name)
            if in_place:
                arguments = relax.Tuple([params[0], params[1 + len(results)]])
                call = relax.op.call_tir_inplace(variable, arguments, 1, tensor_type(8))
            else:
                call = relax.call_tir(variable, relax.Tuple([params[0]]), tensor_type(8))
            results.append(builder.emit(call))
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def members(mod):
    """Return which calls of a module may be joined."""
    marked, known = mark_flat_maps(mod, TABLE_ROWS)
    (name,) = (name for name, func in marked.functions.items() if isinstance(func, relax.Function))
    calls = Calls(Module(marked.functions, views=True), name, marked[name], known)
    bindings = [b for block in marked[name].body.blocks for b in block.bindings]
    found = [calls.member(b) for b in bindings if isinstance(b.value, relax.Call)]
    assert len(found) == 2
    return [member for member in found if member is not None]


def test_tensors_of_known_shapes():
    assert len(members(called(tensor_type(8)))) == 2


UNKNOWN = {
    "no shape": relax.TensorType(dtype="float32", ndim=1),
    "a symbolic one": tensor_type(tirx.Var("n", "int64")),
}


@pytest.mark.parametrize("ty", UNKNOWN.values(), ids=UNKNOWN)
def test_tensors_of_other_shapes_stay_apart(ty):
    mod = called(ty)
    assert not members(mod)
    (x,) = random_tensors((8,))
    doubled, more = (result.numpy() for result in machine(mod)["main"](x))
    np.testing.assert_array_equal(doubled, x.numpy() * 2)
    np.testing.assert_array_equal(more, x.numpy() + 2)


def test_a_kernel_that_takes_the_memory_of_its_result_stays_apart():
    mod = called(*[tensor_type(8)] * 3, in_place=True)
    assert not members(mod)
    x, y, z = random_tensors((8,), (8,), (8,))
    doubled, more = (result.numpy() for result in machine(mod)["main"](x, y, z))
    np.testing.assert_array_equal(doubled, x.numpy() * 2)
    np.testing.assert_array_equal(more, x.numpy() + 2)


@pytest.mark.parametrize(("extents", "count"), [((4, 6), 0), ((24,), 1)], ids=["reshape", "copy"])
def test_what_becomes_a_view_is_not_copied_with_others(extents, count):
    x = te.placeholder(tuple(tirx.IntImm("int64", n) for n in (24,)), "float32", "x")
    width = extents[-1]
    given = te.compute(
        tuple(tirx.IntImm("int64", n) for n in extents),
        lambda *at: x(at[0] * width + at[1]) if len(at) == 2 else x(*at),
    )
    mod = tvm.IRModule({"same": te.create_prim_func([x, given])})
    _, known = mark_flat_maps(mod, TABLE_ROWS)
    assert len(known) == count
