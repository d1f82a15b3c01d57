"""Which values share memory, by the analysis alone: nothing is compiled here."""

import numpy as np
import pytest
import tvm
from tvm import relax

from graphgrad.errors import AliasError, ArgumentError
from graphgrad.memory.alias import Module
from graphgrad.memory.regions import OUTSIDE, leaves
from tests.lower import aliasing
from tests.lower.aliasing import TENSOR, call

op = relax.op
PAIR = relax.TupleType([TENSOR, TENSOR])


def analyzed(build, *types, name="main", mod=None, views=False):
    """Return what is known of a function that ``build(builder, *parameters)`` writes."""
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types or [TENSOR, TENSOR])]
    builder = relax.BlockBuilder(mod)
    with builder.function(name, params, pure=False):
        builder.emit_func_output(build(builder, *params))
    mod = builder.get()
    return Module(mod.functions, views).function(mod.get_global_var(name))


def regions(aliases, tree):
    return [aliases.region(leaf) for leaf in leaves(tree)]


def of_result(build, *types, **options):
    """Return the classes of a function's parameters and results, as small numbers in order."""
    aliases = analyzed(build, *types, **options)
    found = [regions(aliases, aliases.params), regions(aliases, aliases.result)]
    numbers = {OUTSIDE: "outside"}
    for region in found[0] + found[1]:
        numbers.setdefault(region, len(numbers) - 1)
    return [[numbers[region] for region in some] for some in found]


def choice(builder, condition, *results):
    branches = [relax.SeqExpr([], result) for result in results]
    return builder.emit(relax.If(condition, *branches))


BOOL = relax.TensorType((), "bool")

SHARED = {
    "an op": (lambda b, x, y: b.emit(op.add(x, y)), [2]),
    "a name": (lambda b, x, y: b.emit(x), [0]),
    "a tuple": (lambda b, x, y: b.emit(relax.Tuple([y, x, y])), [1, 0, 1]),
    "a member": (lambda b, x, y: relax.TupleGetItem(b.emit(relax.Tuple([x, y])), 1), [1]),
    "a view": (lambda b, x, y: b.emit(op.memory.view(x, (2, 2))), [0]),
    "an offset": (lambda b, x, y: b.emit(op.memory.ensure_zero_offset(x)), [0]),
    "a reshape": (lambda b, x, y: b.emit(op.reshape(x, (2, 2))), [2]),
    "a cast": (lambda b, x, y: b.match_cast(x, relax.TensorType(ndim=1, dtype="float64")), [0]),
    "overwritten": (
        lambda b, x, y: b.emit(
            op.call_inplace_packed(
                aliasing.DECLARED_INCREMENTED, x, inplace_indices=0, ty_args=TENSOR
            )
        ),
        [0],
    ),
    "declared to return it": (
        lambda b, x, y: b.emit(call(aliasing.DECLARED_SAME, x, ty=TENSOR)),
        [0],
    ),
    "declared with nothing": (
        lambda b, x, y: b.emit(call(aliasing.DECLARED_SEE, x, ty=TENSOR)),
        [2],
    ),
    "written by a packed function": (
        lambda b, x, y: b.emit(
            op.call_dps_packed(aliasing.DECLARED_DOUBLE, relax.Tuple([x]), TENSOR)
        ),
        [2],
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_a_result_shares_memory_with(name):
    build, expected = SHARED[name]
    assert of_result(build) == [[0, 1], expected]


def test_a_reshape_is_a_view_where_it_becomes_one():
    def build(builder, x, y):
        with builder.dataflow():
            view = builder.emit(op.reshape(x, (2, 2)))
            result = builder.emit_output(relax.Tuple([view]))
        return result

    assert of_result(build, views=True) == [[0, 1], [0]]
    assert of_result(build) == [[0, 1], [2]]


def test_a_branch_joins_what_it_chooses_between():
    def build(builder, condition, x, y, z):
        return relax.Tuple([choice(builder, condition, x, y), z])

    assert of_result(build, BOOL, TENSOR, TENSOR, TENSOR) == [[0, 1, 1, 2], [1, 2]]


def test_branches_join_tuples_member_by_member():
    def build(builder, condition, x, y):
        return choice(builder, condition, x, y)

    assert of_result(build, BOOL, PAIR, PAIR) == [[0, 1, 2, 1, 2], [1, 2]]


def test_where_a_value_may_come_from():
    def build(builder, condition, x, y, pair):
        chosen = choice(builder, condition, builder.emit(relax.Tuple([x, y])), pair)
        again = choice(builder, condition, builder.emit(relax.TupleGetItem(chosen, 1)), x)
        cast = builder.match_cast(again, relax.TensorType(ndim=1, dtype="float64"))
        view = builder.emit(op.memory.view(x, (2, 2)))
        return relax.Tuple([again, cast, builder.emit(op.reshape(cast, (4,))), view])

    aliases = analyzed(build, BOOL, TENSOR, TENSOR, PAIR, views=True)
    *same, view = map(aliases.origins, aliases.result)
    assert same == [[("param", 2), ("param", 3, 1), ("param", 1)]] * 3
    assert [origin[0] for origin in view] == ["call"]


def test_uses_in_the_branches_of_one_if_exclude_each_other():
    def build(builder, condition, x):
        branches = []
        for function in (op.sin, op.cos):
            out = relax.Var("out", TENSOR)
            block = relax.BindingBlock([relax.VarBinding(out, function(x))])
            branches.append(relax.SeqExpr([block], out))
        return builder.emit(relax.If(condition, *branches))

    aliases = analyzed(build, BOOL, TENSOR)
    first, second = aliases.uses_of(aliases.region(aliases.params[1]))
    assert first.excludes(second.path)
    assert not first.excludes(())
    assert first.position < second.position


@pytest.mark.parametrize("name", [aliasing.KEEP, aliasing.DECLARED_KEEP])
def test_what_is_kept_is_outside(name):
    def build(builder, x, y):
        builder.emit(call(name, x))
        return y

    assert of_result(build) == [["outside", 0], [0]]


def test_an_undeclared_function_may_return_what_any_has_kept():
    def build(builder, x, y):
        builder.emit(call(aliasing.KEEP, x))
        return builder.emit(call("tests.aliasing.unknown", ty=TENSOR))

    assert of_result(build) == [["outside", 0], ["outside"]]


def callee(build, *types, name="callee"):
    params = [relax.Var(f"a{i}", ty) for i, ty in enumerate(types or [TENSOR, TENSOR])]
    builder = relax.BlockBuilder()
    with builder.function(name, params, pure=False, private=True):
        builder.emit_func_output(build(builder, *params))
    return builder.get()


@pytest.mark.parametrize(
    ("inside", "shared", "written"),
    [
        (lambda b, x, y: b.emit(op.add(x, y)), [2], []),
        (lambda b, x, y: y, [1], []),
        (lambda b, x, y: b.emit(relax.Tuple([x, op.sin(y)])), [0, 2], []),
        (lambda b, x, y: (b.emit(call(aliasing.DECLARED_ADD_TO, x, y)), y)[1], [1], [0]),
    ],
)
def test_a_called_function_is_known_by_its_summary(inside, shared, written):
    mod = callee(inside)
    name = mod.get_global_var("callee")
    assert of_result(lambda b, x, y: b.emit(relax.Call(name, [x, y])), mod=mod)[1] == shared
    aliases = analyzed(lambda b, x, y: b.emit(relax.Call(name, [x, y])), mod=mod)
    found = [i for i, p in enumerate(aliases.params) if aliases.is_written(aliases.region(p))]
    assert found == written


def test_a_called_function_that_joins_its_arguments_joins_those_of_the_call():
    def inside(builder, x, y, condition):
        return choice(builder, condition, x, y)

    mod = callee(inside, TENSOR, TENSOR, BOOL)
    name = mod.get_global_var("callee")

    def build(builder, x, y, condition):
        return builder.emit(relax.Call(name, [x, y, condition]))

    assert of_result(build, TENSOR, TENSOR, BOOL, mod=mod) == [[0, 0, 1], [0]]


def test_of_a_function_that_calls_itself_everything_is_assumed():
    ty = relax.FuncType([TENSOR], TENSOR, purity=False)
    name = tvm.ir.GlobalVar("main")
    relax.expr._update_type(name, ty)
    x, y = relax.Var("x", TENSOR), relax.Var("y", TENSOR)
    block = relax.BindingBlock([relax.VarBinding(y, relax.Call(name, [x]))])
    function = relax.Function([x], relax.SeqExpr([block], y), TENSOR, is_pure=False)
    aliases = Module({name: function}).function(name)
    assert regions(aliases, [aliases.params, aliases.result]) == [OUTSIDE, OUTSIDE]
    assert aliases.is_written(OUTSIDE)


def test_each_constant_is_found_where_it_stands():
    def build(builder, x, y):
        constant = builder.emit(relax.const(np.ones(4), "float64"))
        builder.emit(call(aliasing.DECLARED_INCREMENT, constant))
        return builder.emit(op.add(relax.const(np.ones(4), "float64"), x))

    aliases = analyzed(build)
    written = [aliases.is_written(aliases.region(c.leaf)) for c in aliases.constants]
    assert written == [True, False]


def test_a_pure_call_of_what_is_declared_to_mutate_is_a_contradiction():
    def build(builder, x, y):
        return builder.emit(op.call_pure_packed(aliasing.DECLARED_INCREMENTED, x, ty_args=TENSOR))

    with pytest.raises(
        AliasError, match=r"declared to mutate its argument 0, but .*R\.call_packed"
    ):
        analyzed(build)


def test_positions_that_a_call_does_not_have_are_refused():
    def build(builder, x, y):
        builder.emit(call(aliasing.DECLARED_SAME))
        return x

    with pytest.raises(ArgumentError, match=r"argument 0, but is called with 0 argument"):
        analyzed(build)


def test_the_cost_grows_with_the_number_of_bindings():
    """Deep chains of choices and tuples: classes are joined, never copied."""

    def build(length):
        def chain(builder, condition, x, y):
            for _ in range(length):
                pair = builder.emit(relax.Tuple([x, y]))
                x = choice(builder, condition, relax.TupleGetItem(pair, 0), y)
            return x

        return analyzed(chain, BOOL, TENSOR, TENSOR)

    short, long = (len(build(n).regions._parent) for n in (50, 100))
    assert long < 2.2 * short


def test_a_declared_function_writes_what_was_allocated_for_its_results():
    """`call_dps_packed` passes results behind the arguments, which no declaration names."""
    x = relax.Var("x", TENSOR)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        doubled = builder.emit(op.call_dps_packed(aliasing.DECLARED_DOUBLE, x, TENSOR))
        result = builder.emit(op.call_dps_packed(aliasing.DECLARED_DOUBLE, doubled, TENSOR))
        builder.emit_func_output(result)
    mod = relax.transform.CallTIRRewrite()(builder.get())
    aliases = Module(mod.functions).function(mod.get_global_var("main"))
    first, second = (aliases.region(aliases.values[var]) for var in (doubled, result))
    used = [(aliases.region(use.leaf), use.writes) for use in aliases.uses]
    assert used[1:] == [(first, True), (first, False), (second, True)]
