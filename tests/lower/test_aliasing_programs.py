"""Programs that TVM gets wrong, or leaves undefined: right values, or a clear error.

The first ones are those of tlc-pack/relax#213. Every program runs twice: what a run leaves behind
must not change the next.
"""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, SHAPE, TENSOR, Interpreter, call, flat, outside

op = relax.op
BOOL = relax.TensorType((), "bool")
GLOBAL = np.zeros(SHAPE, DTYPE)
GLOBAL_TENSOR = tvm.runtime.tensor(GLOBAL)


@tvm.register_global_func("tests.aliasing.global", override=True)
def _global_tensor():
    return GLOBAL_TENSOR


aliasing.FUNCTIONS["tests.aliasing.global"] = lambda: GLOBAL


def seen_through_an_alias(b, x):
    h = b.emit(op.multiply(x, x))
    alias = b.emit(h)
    b.emit(call(aliasing.INCREMENT, h))
    return b.emit(op.add(alias, x))


def seen_through_an_if(b, condition, x):
    h, k = b.emit(op.multiply(x, x)), b.emit(op.add(x, x))
    chosen = b.emit(relax.If(condition, relax.SeqExpr([], h), relax.SeqExpr([], k)))
    b.emit(call(aliasing.INCREMENT, chosen))
    return relax.Tuple([b.emit(op.sin(h)), b.emit(op.sin(k)), chosen])


def through_a_closure_called_twice(b, x):
    h = b.emit(op.multiply(x, x))
    a, effect, out = relax.Var("a", TENSOR), relax.Var("_"), relax.Var("out", TENSOR)
    increment = call(aliasing.INCREMENT, h)
    block = relax.BindingBlock(
        [relax.VarBinding(effect, increment), relax.VarBinding(out, op.add(a, h))]
    )
    body = b.normalize(relax.SeqExpr([block], out))
    closure = b.emit(relax.Function([a], body, TENSOR, is_pure=False))
    first = b.emit(relax.Call(closure, [x]))
    second = b.emit(relax.Call(closure, [first]))
    return relax.Tuple([h, b.emit(op.add(first, second))])


def a_scalar(b, x):
    alias = b.emit(x)
    b.emit(call(aliasing.INCREMENT, x))
    return b.emit(op.add(alias, x))


def a_global_tensor(b, x):
    first = b.emit(call("tests.aliasing.global", ty=TENSOR))
    second = b.emit(call("tests.aliasing.global", ty=TENSOR))
    before = b.emit(op.add(first, x))
    b.emit(call(aliasing.INCREMENT, first))
    return relax.Tuple([before, b.emit(op.add(second, x))])


def a_constant(b, x):
    constant = b.emit(relax.const(np.ones(SHAPE), DTYPE))
    b.emit(call(aliasing.INCREMENT, constant))
    return relax.Tuple([b.emit(op.add(constant, x)), constant])


def a_constant_in_place(b, x):
    constant = relax.const(np.ones(SHAPE), DTYPE)
    return b.emit(
        op.call_inplace_packed(
            aliasing.DECLARED_INCREMENTED, constant, inplace_indices=0, ty_args=TENSOR
        )
    )


def a_constant_chosen_by_an_if(b, condition, x):
    constants = [relax.const(np.full(SHAPE, v), DTYPE) for v in (1.0, 2.0)]
    branches = [relax.SeqExpr([], constant) for constant in constants]
    return relax.Tuple([b.emit(relax.If(condition, *branches)), constants[0]])


def a_constant_behind_a_reshape(b, x):
    with b.dataflow():
        flat = b.emit(op.reshape(relax.const(np.ones((2, 2)), DTYPE), SHAPE))
        both = b.emit_output(relax.Tuple([flat, b.emit(op.reshape(x, (2, 2)))]))
    return both


def kept(b, x):
    """The planner must not give to others what is kept, nor its packed result, nor a cast."""
    h = b.emit(op.sin(x))
    b.emit(call(aliasing.DECLARED_KEEP, h))
    return _work(b, x, [])


def returned_by_a_packed_function(b, x):
    h = b.emit(op.sin(x))
    return _work(b, x, [b.emit(op.call_pure_packed(aliasing.SAME, h, ty_args=TENSOR))])


def overwritten_by_a_packed_function(b, x):
    h = b.emit(op.sin(x))
    overwritten = op.call_inplace_packed(aliasing.INCREMENTED, h, inplace_indices=0, ty_args=TENSOR)
    return _work(b, x, [b.emit(overwritten)])


def cast(b, x):
    loose = b.match_cast(b.emit(op.sin(x)), relax.TensorType(ndim=1, dtype=DTYPE))
    return _work(b, x, [b.match_cast(loose, TENSOR)])


def _work(b, x, used):
    """Emit what needs memory in between, and uses some values last."""
    y = b.emit(op.sort(b.emit(op.add(x, x))))
    y = b.emit(op.sort(b.emit(op.multiply(y, x))))
    for value in used:
        y = b.emit(op.sort(b.emit(op.add(y, value))))
    return y


def read_before_it_is_overwritten(b, x):
    """Fusion must not move the read behind the call."""
    with b.dataflow():
        before = b.emit(op.sin(x))
        after = op.call_inplace_packed(
            aliasing.DECLARED_INCREMENTED, x, inplace_indices=0, ty_args=TENSOR
        )
        result = b.emit_output(op.add(before, b.emit(after)))
    return result


def one_of_two_equal_results(b, x):
    """Sharing must not make one tensor of them, as what changes one would change both."""
    with b.dataflow():
        inner = [b.emit(op.add(b.emit(op.sin(x)), x)) for _ in range(2)]
        first, second = map(b.emit_output, inner)
    b.emit(call(aliasing.DECLARED_INCREMENT, first))
    return relax.Tuple([first, second])


def overwritten_for_nothing(b, x):
    """Fusion must not drop a call whose result is unused where what it overwrites is not."""
    b.emit(
        op.call_inplace_packed(aliasing.DECLARED_INCREMENTED, x, inplace_indices=0, ty_args=TENSOR)
    )
    return b.emit(op.sin(x))


PROGRAMS = [
    (seen_through_an_alias, [TENSOR]),
    (seen_through_an_if, [BOOL, TENSOR]),
    (through_a_closure_called_twice, [TENSOR]),
    (a_scalar, [relax.TensorType((), DTYPE)]),
    (a_global_tensor, [TENSOR]),
    (a_constant, [TENSOR]),
    (a_constant_in_place, [TENSOR]),
    (a_constant_chosen_by_an_if, [BOOL, TENSOR]),
    (a_constant_behind_a_reshape, [TENSOR]),
    (kept, [TENSOR]),
    (returned_by_a_packed_function, [TENSOR]),
    (overwritten_by_a_packed_function, [TENSOR]),
    (cast, [TENSOR]),
    (read_before_it_is_overwritten, [TENSOR]),
]

aliasing.PURE["relax.sort"] = np.sort


def written(programs):
    builder = relax.BlockBuilder()
    for build, types in programs:
        params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
        with builder.function(build.__name__, params, pure=False):
            builder.emit_func_output(build(builder, *params))
    return builder.get()


@pytest.fixture(scope="module")
def compiled():
    mod = written(PROGRAMS)
    return mod, relax.VirtualMachine(gg.compile(mod), tvm.cpu())


def arguments(types, choice):
    generator = np.random.default_rng(0)
    shapes = [[int(extent) for extent in ty.shape] for ty in types]
    return [
        np.array(choice) if str(ty.dtype) == "bool" else np.array(generator.uniform(-1, 1, shape))
        for ty, shape in zip(types, shapes, strict=True)
    ]


def check(mod, machine, name, arrays):
    """Run a program on copies of arrays, as it is and interpreted; all that is left must agree."""
    results = []
    for run, copies in (
        (Interpreter(mod).run, [a.copy() for a in arrays]),
        (lambda name, *tensors: machine[name](*tensors), [to_tensor(a) for a in arrays]),
    ):
        with outside() as held:
            returned = flat(run(name, *copies))
            left = [*returned, *copies, *held.kept, *held.seen]
            results.append([np.array(t if isinstance(t, np.ndarray) else t.numpy()) for t in left])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    return returned


CASES = [
    pytest.param(build, types, choice, id=f"{build.__name__}-{choice}")
    for build, types in PROGRAMS
    for choice in ((True, False) if BOOL in types else (True,))
]


@pytest.mark.parametrize(("build", "types", "choice"), CASES)
def test_values(compiled, build, types, choice):
    mod, machine = compiled
    GLOBAL[...] = 0
    GLOBAL_TENSOR.copyfrom(GLOBAL)
    for _ in range(2):
        returned = check(mod, machine, build.__name__, arguments(types, choice))
        if build is not a_global_tensor:
            for tensor in returned:  # what the caller writes there is his alone
                tensor.copyfrom(np.full(tensor.shape, 7.0))


def test_a_call_is_not_dropped_whose_result_is_unused():
    mod = written([(overwritten_for_nothing, [TENSOR])])
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    check(mod, machine, "overwritten_for_nothing", arguments([TENSOR], True))


def test_two_values_that_are_computed_alike():
    mod = written([(one_of_two_equal_results, [TENSOR])])
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    check(mod, machine, "one_of_two_equal_results", arguments([TENSOR], True))


def test_a_returned_parameter_is_the_argument_itself():
    mod = written([(seen_through_an_alias, [TENSOR]), (itself, [TENSOR])])
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    (x,) = map(to_tensor, arguments([TENSOR], True))
    same, reshaped = machine["itself"](x)
    assert same.data_ptr() == x.data_ptr()
    assert reshaped.data_ptr() != x.data_ptr()


def itself(b, x):
    with b.dataflow():
        both = b.emit_output(relax.Tuple([x, b.emit(op.reshape(x, (2, 2)))]))
    return both


def test_a_sum_is_not_moved_over_what_changes_its_accumulator():
    def total(b, accumulator, x):
        square = b.emit(op.multiply(x, x))
        b.emit(call(aliasing.DECLARED_INCREMENT, accumulator))
        return b.emit(op.add(accumulator, square))

    mod = written([(total, [TENSOR, TENSOR])])
    mod["total"] = mod["total"].with_attr("graphgrad.donated", [[0, 0]])
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    arrays = arguments([TENSOR, TENSOR], True)
    expected = arrays[0] + 0.25 + arrays[1] ** 2
    x, y = map(to_tensor, arrays)
    got = machine["total"](x, y)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
    assert got.data_ptr() == x.data_ptr()


DEPENDING = [
    seen_through_an_alias,
    seen_through_an_if,
    through_a_closure_called_twice,
    a_scalar,
]


@pytest.mark.parametrize("build", DEPENDING, ids=lambda build: build.__name__)
def test_gradients_through_what_nobody_knows_are_refused(build):
    mod = written([(build, dict(PROGRAMS)[build])])
    with pytest.raises(gg.MissingGradientError, match=rf"{aliasing.INCREMENT}.*may mutate"):
        gg.vjp(mod, build.__name__)


@pytest.mark.parametrize("build", [a_global_tensor, a_constant])
def test_gradients_beside_what_is_changed(build):
    name = build.__name__
    mod = gg.vjp(written([(build, [TENSOR])]), name)
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    (x,) = arguments([TENSOR], True)
    types = [TENSOR] * len(flat(machine[name](to_tensor(x))))
    cotangents = arguments([TENSOR, *types], True)[1:]
    GLOBAL_TENSOR.copyfrom(np.zeros(SHAPE))
    results, (gradient,) = machine[f"{name}_vjp"](*map(to_tensor, [x, *cotangents]))
    GLOBAL[...] = 0
    for got, expected in zip(flat(results), flat(Interpreter(mod).run(name, x)), strict=True):
        np.testing.assert_allclose(got.numpy(), expected)
    expected = cotangents[0] if build is a_constant else sum(cotangents)
    np.testing.assert_allclose(gradient.numpy(), expected)
