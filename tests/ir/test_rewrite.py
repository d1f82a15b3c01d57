import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.kernel_structure import substitute_values
from graphgrad.ir.rewrite import bindings_of, leave_dataflow, rebuilt, replace_body

op = relax.op
TENSOR = relax.TensorType((4,), "float32")
BOOL = relax.TensorType((), "bool")


def names(body):
    return [binding.var.name for binding in bindings_of(body)]


def local(name, value):
    return relax.VarBinding(relax.Var(name, TENSOR), relax.BlockBuilder().normalize(value))


@pytest.fixture
def branching():
    """``y = if c: a = sin(x); a  else: b = cos(x); b``, then ``z = y + y``."""
    builder = relax.BlockBuilder()
    c, x = relax.Var("c", BOOL), relax.Var("x", TENSOR)
    with builder.function("main", [c, x]):
        branches = []
        for name, value in (("a", op.sin(x)), ("b", op.cos(x))):
            block = relax.BindingBlock([local(name, value)])
            sequence = relax.SeqExpr([block], block.bindings[0].var)
            branches.append(builder.normalize(sequence))
        y = builder.emit(relax.If(c, *branches), "y")
        builder.emit_func_output(builder.emit(op.add(y, y), "z"))
    return builder.get()["main"]


def test_bindings_of_branches_come_before_their_if(branching):
    assert names(branching.body) == ["a", "b", "y", "z"]


def test_bindings_of_a_local_function_come_before_it():
    a, x = relax.Var("a", TENSOR), relax.Var("x", TENSOR)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        inner = relax.BindingBlock([local("inside", op.sin(a))])
        body = builder.normalize(relax.SeqExpr([inner], inner.bindings[0].var))
        function = builder.emit(relax.Function([a], body, TENSOR), "function")
        builder.emit_func_output(builder.emit(relax.Call(function, [x]), "called"))
    assert names(builder.get()["main"].body) == ["inside", "function", "called"]


def test_unchanged_parts_stay_equal(branching):
    same = replace_body(branching, rebuilt(branching.body))
    tvm.ir.assert_structural_equal(same, branching)
    assert same.ret_ty == branching.ret_ty


def test_bindings_are_replaced_in_branches_too(branching):
    def twice(binding):
        if isinstance(binding.value, relax.If):
            return [binding]
        return [local(f"before_{binding.var.name}", op.sin(branching.params[1])), binding]

    found = names(rebuilt(branching.body, twice))
    assert found == ["before_a", "a", "before_b", "b", "y", "before_z", "z"]


def test_blocks_are_given_rebuilt(branching):
    seen = []

    def block(item):
        seen.append([binding.var.name for binding in item.bindings])
        return [item]

    rebuilt(branching.body, lambda b: [] if b.var.name == "z" else [b], block)
    assert seen == [["a"], ["b"], ["y"]]


def test_results_of_branches_and_of_the_function_are_changed(branching):
    def negated(body):
        added = local(f"minus_{body.body.name}", op.negative(body.body))
        return [added], added.var

    body = rebuilt(branching.body, result=negated)
    assert names(body) == ["a", "minus_a", "b", "minus_b", "y", "z", "minus_z"]
    assert body.body.name == "minus_z"
    changed = replace_body(branching, body)
    machine = relax.VirtualMachine(gg.compile(tvm.IRModule({"main": changed})), tvm.cpu())
    x = tvm.runtime.tensor(np.zeros(4, "float32"))
    for condition, expected in ((True, 0.0), (False, 2.0)):  # -2 · -sin 0, -2 · -cos 0
        result = machine["main"](tvm.runtime.tensor(np.array(condition)), x)
        assert result.numpy().tolist() == [expected] * 4


def test_variables_are_renamed_where_they_are_bound(branching):
    z = bindings_of(branching.body)[-1].var
    other = relax.Var("other", TENSOR)
    body = substitute_values(branching.body, {z: other})
    assert names(body) == ["a", "b", "y", "other"] and body.body.same_as(other)


def test_with_body_keeps_what_a_function_is(branching):
    function = branching.with_attr("graphgrad.donated", [[1, 0]])
    changed = replace_body(function, rebuilt(function.body))
    assert changed.attrs["graphgrad.donated"] == function.attrs["graphgrad.donated"]
    assert list(changed.params) == list(function.params) and changed.is_pure


def test_chosen_bindings_leave_their_dataflow_block():
    builder = relax.BlockBuilder()
    x = relax.Var("x", TENSOR)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.sin(x), "y")
            z = builder.emit_output(op.cos(y), "z")
        builder.emit_func_output(z)
    main = builder.get()["main"]
    assert leave_dataflow(main, lambda binding: False) is main
    changed = leave_dataflow(main, lambda binding: binding.var.name == "y")
    first, second = bindings_of(changed.body)
    assert not isinstance(first.var, relax.DataflowVar)
    assert second.value.args[0].same_as(first.var)
