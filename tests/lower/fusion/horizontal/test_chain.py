from tvm import te, tirx

from graphgrad.lower.fusion.horizontal.chain import Call, Chain, Formula
from graphgrad.lower.fusion.horizontal.flat import flat_map


def tensor(*shape, dtype="float32"):
    """Return a placeholder with 64-bit extents, as Relax makes them."""
    return te.placeholder(tuple(tirx.IntImm("int64", n) for n in shape), dtype, "x")


def told(function, count, shape=(4,), scalars=0):
    """Return a flat map of tensors, and of scalars behind them."""
    inputs = [*(tensor(*shape) for _ in range(count)), *(tensor() for _ in range(scalars))]
    output = te.compute(
        inputs[0].shape, lambda *i: function(*(x(*i[: len(x.shape)]) for x in inputs))
    )
    return flat_map(te.create_prim_func([*inputs, output]))


ADD = told(lambda x, y: x + y, 2)
DOUBLE = told(lambda x: x * 2.0, 1)
SCALE = told(lambda x, a: x * a, 1, scalars=1)


def formula(*calls, needed=lambda number: True):
    return Chain(calls).formula(needed)


def test_a_result_is_found_by_the_next_call():
    found, cells = formula(Call(ADD, [0, 1], 2, None), Call(DOUBLE, [2], 3, None))
    assert [cell.argument for cell in cells] == [0, 1, None, None]
    assert found.argument_count == 2 and [cell for cell, _ in found.stores] == [2, 3]


def test_what_nothing_needs_is_not_stored():
    calls = Call(ADD, [0, 1], 2, None), Call(DOUBLE, [2], 3, None)
    found, cells = formula(*calls, needed=lambda number: number == 3)
    assert [cell.results for cell in cells] == [[], [], [3]]
    assert [cell for cell, _ in found.stores] == [2]


def test_what_overwrites_an_argument_is_stored_whether_needed_or_not():
    found, cells = formula(Call(ADD, [0, 1], 2, 1), needed=lambda number: False)
    assert [cell for cell, _ in found.stores] == [1] and cells[1].results == [2]


def test_a_call_before_reads_what_was_there():
    """The first call reads tensor 1, the second one overwrites it, the third one reads that."""
    calls = [
        Call(DOUBLE, [1], 2, None),
        Call(ADD, [0, 1], 3, 1),
        Call(ADD, [3, 2], 4, None),
    ]
    found, cells = formula(*calls)
    assert [cell.argument for cell in cells] == [1, 0, None, None]
    first, second, third = (str(value) for _, value in found.values)
    assert first == "cell0 * T.float32(2.0)"
    assert second == "cell1 + cell0"
    assert third == "value1 + value0"


def test_alike_are_those_that_do_the_same():
    (one, _), (other, _) = formula(Call(ADD, [0, 1], 2, None)), formula(Call(ADD, [5, 6], 7, None))
    assert one.is_like(other)
    swapped = told(lambda x, y: y + x, 2)
    assert not one.is_like(formula(Call(swapped, [0, 1], 2, None))[0])
    assert not one.is_like(formula(Call(ADD, [0, 1], 2, 0))[0])
    assert not one.is_like(formula(Call(ADD, [0, 0], 2, None))[0])
    assert not one.is_like(formula(Call(DOUBLE, [0], 2, None))[0])


def test_alike_have_the_same_scalars():
    one, _ = formula(Call(SCALE, [0, 9], 1, None))
    assert one.is_like(formula(Call(SCALE, [2, 9], 3, None))[0])
    assert not one.is_like(formula(Call(SCALE, [2, 8], 3, None))[0])


def test_shapes_do_not_matter_and_dtypes_do():
    one, _ = formula(Call(ADD, [0, 1], 2, None))
    wide = told(lambda x, y: x + y, 2, shape=(2, 3, 5))
    assert one.is_like(formula(Call(wide, [0, 1], 2, None))[0])
    inputs = [tensor(4, dtype="float64") for _ in range(2)]
    double = te.compute((4,), lambda i: inputs[0](i) + inputs[1](i))
    exact = flat_map(te.create_prim_func([*inputs, double]))
    assert not one.is_like(formula(Call(exact, [0, 1], 2, None))[0])


def test_what_nothing_reads_is_not_computed():
    calls = [
        Call(SCALE, [0, 9], 1, None),
        Call(DOUBLE, [1], 2, None),
        Call(ADD, [0, 3], 4, None),
    ]
    found, _ = formula(*calls, needed=lambda number: number == 4)
    assert [str(value) for _, value in found.values] == ["cell0 + cell1"]


def test_chains_whose_results_nobody_reads_are_alike():
    """TVM refuses sequences of no statements."""
    nothing = Formula(["float32"], 1, [], [], [], [])
    assert nothing.is_like(Formula(["float32"], 1, [], [], [], []))
    assert not nothing.is_like(Formula(["float64"], 1, [], [], [], []))
