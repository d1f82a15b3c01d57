"""Programs for many values at once: the same as for each value alone."""

import numpy as np
import pytest
import tvm
from tvm import relax, te

import graphgrad as gg
from graphgrad.autodiff.batching import batch_program
from graphgrad.check import flat
from graphgrad.check.samples import sample_inputs, sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.inline import inline_calls
from graphgrad.ir.write import write_program
from graphgrad.ops.elementwise import ELEMENTWISE
from tests.autodiff.test_if import Chosen
from tests.registry.checkers import OF_RULE
from tests.running import F64, function

op = relax.op
COUNT = 3


def assert_batched(mod, draw, chosen):
    """Run a function for many values of some parameters, by position, and for each alone."""
    program = inline_calls(mod, "main")
    variables = [program.params[position] for position in chosen]
    many = write_program(batch_program(program, variables, COUNT), "many")
    many.update(mod)
    vm = relax.VirtualMachine(gg.compile(many, {"kind": "llvm", "opt-level": 0}), tvm.cpu())

    def run(name, arrays):
        return flat(vm[name](*map(to_tensor, arrays)))

    draws = [draw(np.random.default_rng(seed)) for seed in range(COUNT)]
    stacked = [
        np.stack([values[position] for values in draws]) if position in chosen else array
        for position, array in enumerate(draws[0])
    ]
    together = run("many", stacked)
    for index in range(COUNT):
        alone = run("main", [a[index] if n in chosen else a for n, a in enumerate(stacked)])
        for given, expected in zip(together, alone, strict=True):
            # What depends on none of the parameters has no further axis.
            value = given if given.ndim == expected.ndim else given[index]
            np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)
    return many


def drawing(*shapes):
    return lambda generator: [generator.uniform(0.5, 1.5, shape) for shape in shapes]


def operands(sample):
    return len(sample_inputs(sample, np.random.default_rng(0)))


CASES = [
    pytest.param(op_name, sample, which, id=f"{op_name}-{which}")
    for op_name, cases in OF_RULE.items()
    for rule, sample in cases[:1]
    if rule.function is not None and "'n'" not in str(sample)
    # Maps treat all operands alike.
    for which in ("all", "first")[: 1 if op_name in ELEMENTWISE else operands(sample)]
]


@pytest.mark.parametrize(("op_name", "sample", "which"), CASES)
def test_op(op_name, sample, which):
    mod = sample_module(op_name, sample, "main")
    count = len(mod["main"].params)
    chosen = range(count) if which == "all" else [0]
    assert_batched(mod, lambda generator: sample_inputs(sample, generator), list(chosen))


def calls(mod, name="many"):
    bindings = [b.value for block in mod[name].body.blocks for b in block.bindings]
    return [value.op.name for value in bindings if isinstance(value, relax.Call)]


def test_what_is_the_same_for_all_is_computed_once():
    def build(b, x, w):
        return b.emit(op.multiply(x, op.exp(op.matmul(w, w))))

    mod = function(build, ((3, 3), F64), ((3, 3), F64))
    many = assert_batched(mod, drawing((3, 3), (3, 3)), [0])
    product = next(
        b.var
        for block in many["many"].body.blocks
        for b in block.bindings
        if getattr(getattr(b.value, "op", None), "name", "") == "relax.matmul"
    )
    assert [int(extent) for extent in product.ty.shape] == [3, 3]


def test_convolution_of_shared_weights_is_one_of_a_long_batch():
    mod = function(
        lambda b, x, w: b.emit(op.nn.conv2d(x, w, padding=1)),
        ((2, 3, 5, 5), F64),
        ((4, 3, 3, 3), F64),
    )
    many = assert_batched(mod, drawing((2, 3, 5, 5), (4, 3, 3, 3)), [0])
    assert "relax.nn.conv2d" in calls(many)
    assert_batched(mod, drawing((2, 3, 5, 5), (4, 3, 3, 3)), [1])


def test_kernel_of_a_user_gets_the_axis():
    x = relax.Var("x", relax.TensorType((4,), F64))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        squares = gg.call_te(lambda a: te.compute((4,), lambda i: a[i] * a[3 - i]), x)
        builder.emit_func_output(builder.emit(squares))
    many = assert_batched(builder.get(), drawing((4,)), [0])
    assert calls(many) == ["relax.call_tir"]


def test_loop_is_run_for_each():
    x, h = (relax.Var(n, relax.TensorType(s, F64)) for n, s in (("x", (5, 2)), ("h", (2,))))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, h]):

        def step(h, x):
            h = builder.emit(op.tanh(op.add(x, h)))
            return h, h

        last, stacked = gg.scan(step, h, x)
        builder.emit_func_output(builder.emit(relax.Tuple([last, stacked])))
    assert_batched(builder.get(), drawing((5, 2), (2,)), [0])


def test_branches_that_differ_are_refused():
    program = inline_calls(Chosen, "main")
    with pytest.raises(gg.ArgumentError, match="branches of y"):
        batch_program(program, program.params[:1], COUNT)
