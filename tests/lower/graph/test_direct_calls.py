import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.rewrite import bindings_of, rebuilt, replace_body
from graphgrad.lower.graph.direct_calls import resolve_closures
from tests.lower import aliasing
from tests.lower.op_names import op_names

op = relax.op
TENSOR = aliasing.TENSOR
MAKE = tvm.ir.Op.get("relax.make_closure")


def adder(builder, captured):
    """Emit a local function ``a -> a + captured``."""
    a, out = relax.Var("a", TENSOR), relax.Var("out", TENSOR)
    block = relax.BindingBlock([relax.VarBinding(out, op.add(a, captured))])
    body = builder.normalize(relax.SeqExpr([block], out))
    return builder.emit(relax.Function([a], body, TENSOR))


def lifted(build):
    builder = relax.BlockBuilder()
    x = relax.Var("x", TENSOR)
    with builder.function("main", [x]):
        builder.emit_func_output(build(builder, x))
    return relax.transform.LambdaLift()(builder.get())


def called_twice(builder, x):
    closure = adder(builder, builder.emit(op.multiply(x, x)))
    return builder.emit(relax.Call(closure, [builder.emit(relax.Call(closure, [x]))]))


def direct_calls(mod):
    values = [binding.value for binding in bindings_of(mod["main"].body)]
    calls = [value for value in values if isinstance(value, tvm.ir.Call)]
    return [call for call in calls if isinstance(call.op, tvm.ir.GlobalVar)]


def test_a_closure_made_here_is_called_directly():
    mod = lifted(called_twice)
    assert "relax.make_closure" in op_names(mod["main"])
    first, second = direct_calls(resolve_closures(mod))
    assert first.op == second.op
    for called in (first, second):
        assert len(called.args) == 2  # its own argument, and what is captured
        assert called.ty == TENSOR
    invoked = "relax.invoke_pure_closure"
    assert invoked in op_names(mod["main"])
    assert invoked not in op_names(resolve_closures(mod)["main"])


def test_a_closure_is_known_by_another_name():
    mod = lifted(called_twice)
    aliases = {}

    def named_again(binding):
        value = binding.value
        if isinstance(value, tvm.ir.Call) and value.op == MAKE:
            aliases[binding.var] = relax.Var("alias", binding.var.ty)
            return [binding, relax.VarBinding(aliases[binding.var], binding.var)]
        return [binding]

    def by_alias(binding):
        value = binding.value
        if isinstance(value, tvm.ir.Call) and value.args[0] in aliases:
            arguments = [aliases[value.args[0]], *value.args[1:]]
            changed = relax.Call(value.op, arguments, value.attrs, value.ty_args)
            return [relax.VarBinding(binding.var, relax.BlockBuilder().normalize(changed))]
        return [binding]

    body = rebuilt(rebuilt(mod["main"].body, named_again), by_alias)
    mod["main"] = replace_body(mod["main"], body)
    assert len(direct_calls(resolve_closures(mod))) == 2


def test_what_is_called_computes_what_it_did():
    machine = relax.VirtualMachine(gg.compile(lifted(called_twice)), tvm.cpu())
    x = np.array([1.0, 2.0, -3.0, 0.5])
    np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), x + 2 * x * x)


def test_a_closure_that_comes_from_elsewhere_stays_one():
    kind = relax.FuncType([TENSOR], TENSOR)
    closure, x = relax.Var("closure", kind), relax.Var("x", TENSOR)
    builder = relax.BlockBuilder()
    with builder.function("main", [closure, x]):
        builder.emit_func_output(builder.emit(relax.Call(closure, [x])))
    mod = builder.get()
    tvm.ir.assert_structural_equal(resolve_closures(mod), mod)


@pytest.mark.parametrize("build", [lambda b, x: b.emit(op.sin(x)), lambda b, x: x])
def test_functions_without_closures_stay_as_they_are(build):
    mod = lifted(build)
    tvm.ir.assert_structural_equal(resolve_closures(mod), mod)
