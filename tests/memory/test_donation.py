"""Donation: in place where it is safe, a fresh buffer everywhere else, the right values always."""

import numpy as np
import pytest
from tvm import relax, tirx

from graphgrad.errors import ArgumentError
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower.pipeline import pipeline
from graphgrad.lower.target import target
from graphgrad.memory import donation
from graphgrad.memory.donation import DONATED, DONATED_DONE
from tests.labels import label
from tests.lower.aliasing import (
    DECLARED_KEEP,
    DECLARED_SAME,
    DECLARED_SEE,
    KEEP,
    call,
    outside,
)
from tests.lower.programs import machine, module, random_tensors, tensor_type

op = relax.op


def half(x):
    return op.multiply(x, relax.const(0.5, "float32"))


def donated(mod):
    """Return the pairs that lowering honored."""
    done = pipeline(target("llvm"))(mod)["main"].attrs[DONATED_DONE]
    return [[int(p), int(o)] for p, o in done]


def flat(value):
    """Return the tensors of a nested result in order."""
    if hasattr(value, "data_ptr"):
        return [value]
    return [leaf for part in value for leaf in flat(part)]


def momentum_step(builder, p, m, g):
    new_m = builder.emit(op.add(op.multiply(m, relax.const(0.9, "float32")), g))
    new_p = builder.emit(op.subtract(p, half(new_m)))
    return relax.Tuple([half(g), relax.Tuple([new_p, new_m])])


def predicated_step(builder, p, m, g):
    fine = builder.emit(op.less(op.max(g), relax.const(1e6, "float32")))
    new_m = builder.emit(op.add(m, g))
    new_p = builder.emit(op.subtract(p, new_m))
    kept = [op.where(fine, new_p, p), op.where(fine, new_m, m)]
    return relax.Tuple([op.sum(g), relax.Tuple([builder.emit(k) for k in kept])])


@pytest.mark.parametrize("shape", [(3, 5), (64, 32, 3, 3), (20011,), ()], ids=label)
def test_an_optimizer_step_is_in_place(shape):
    mod = module(momentum_step, *[tensor_type(*shape)] * 3, **{DONATED: [[0, 1], [1, 2]]})
    assert donated(mod) == [[0, 1], [1, 2]]
    p, m, g = random_tensors(shape, shape, shape)
    old_p, old_m, old_g = (t.numpy().copy() for t in (p, m, g))
    _, new_p, new_m = flat(machine(mod)["main"](p, m, g))
    assert (new_p.data_ptr(), new_m.data_ptr()) == (p.data_ptr(), m.data_ptr())
    np.testing.assert_allclose(m.numpy(), 0.9 * old_m + old_g, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(p.numpy(), old_p - 0.5 * m.numpy(), rtol=1e-6, atol=1e-6)


def test_a_predicated_step_is_in_place():
    shape = (64, 300)
    mod = module(predicated_step, *[tensor_type(*shape)] * 3, **{DONATED: [[0, 1]]})
    assert donated(mod) == [[0, 1]]
    p, m, g = random_tensors(shape, shape, shape)
    expected = p.numpy() - (m.numpy() + g.numpy())
    _, new_p, _ = flat(machine(mod)["main"](p, m, g))
    assert new_p.data_ptr() == p.data_ptr()
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_symbolic_shapes():
    n = tirx.Var("n", "int64")
    mod = module(lambda b, x: b.emit(half(x)), tensor_type(n, 4), **{DONATED: [[0, 0]]})
    (x,) = random_tensors((7, 4))
    expected = x.numpy() / 2
    assert machine(mod)["main"](x).data_ptr() == x.data_ptr()
    np.testing.assert_array_equal(x.numpy(), expected)


def test_the_same_kernel_serves_donated_and_other_calls():
    def body(builder, x, y):
        return relax.Tuple([builder.emit(op.exp(x)), builder.emit(op.exp(y))])

    mod = module(body, *[tensor_type(5, 6)] * 2, **{DONATED: [[0, 0]]})
    x, y = random_tensors((5, 6), (5, 6))
    expected = np.exp(x.numpy()), np.exp(y.numpy())
    out = flat(machine(mod)["main"](x, y))
    assert out[0].data_ptr() == x.data_ptr()
    assert out[1].data_ptr() != y.data_ptr()
    for a, b in zip(out, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-6)


def test_repeated_steps_stay_right():
    mod = module(momentum_step, *[tensor_type(130, 130)] * 3, **{DONATED: [[0, 1], [1, 2]]})
    p, m, g = random_tensors((130, 130), (130, 130), (130, 130))
    expected_p, expected_m = p.numpy().astype("float64"), m.numpy().astype("float64")
    step = machine(mod)["main"]
    for _ in range(5):
        _, p, m = flat(step(p, m, g))
        expected_m = 0.9 * expected_m + g.numpy()
        expected_p = expected_p - 0.5 * expected_m
    np.testing.assert_allclose(p.numpy(), expected_p, rtol=1e-4, atol=1e-5)


def weighed(b, x, y):
    product = b.emit(op.matmul(x, y))
    return b.emit(op.multiply(b.emit(op.exp(product)), b.emit(op.sum(product))))


def weighed_and_read(b, x, y):
    product = b.emit(op.matmul(x, y))
    result = b.emit(op.multiply(b.emit(op.exp(product)), b.emit(op.sum(product))))
    return relax.Tuple([result, b.emit(op.matmul(b.emit(op.matmul(product, y)), result))])


def weighed_and_returned(b, x, y):
    product = b.emit(op.matmul(x, y))
    result = b.emit(op.multiply(b.emit(op.exp(product)), b.emit(op.sum(product))))
    return relax.Tuple([result, product])


def mirrored(b, x, y):
    product = b.emit(op.matmul(x, y))
    return b.emit(op.add(b.emit(op.flip(product, 1)), b.emit(op.sum(product))))


def weighed_view_of(source):
    def body(b, x, y):
        view = b.emit(op.reshape(source(x), (1, 48, 48)))
        total = b.emit(op.sum(b.emit(op.matmul(view, y))))
        return b.emit(op.multiply(b.emit(op.exp(view)), total))

    return body


CONSTANT = relax.const(np.linspace(0, 1e-3, 48 * 48, dtype="float32"))

TEMPORARIES = {
    "last read": (weighed, True),
    "read later": (weighed_and_read, False),
    "returned": (weighed_and_returned, False),
    "other elements": (mirrored, False),
    "view of a parameter": (weighed_view_of(lambda x: x), False),
    "view of a constant": (weighed_view_of(lambda _: CONSTANT), False),
}


@pytest.mark.parametrize("name", TEMPORARIES)
def test_large_results_are_written_over_what_is_read_last(name, monkeypatch):
    body, is_in_place = TEMPORARIES[name]
    types = [tensor_type(48, 48)] * 2
    x, y = random_tensors((48, 48), (48, 48))
    expected = flat(machine(module(body, *types))["main"](x, y))
    monkeypatch.setattr(donation, "_LARGE", 48 * 48 * 4)
    mod = module(body, *types, **{DONATED: []})
    kernels = [v.name_hint for v in pipeline(target("llvm"))(mod).get_global_vars()]
    assert any("in_place" in kernel for kernel in kernels) == is_in_place
    main = machine(mod)["main"]
    for _ in range(2):
        for a, b in zip(flat(main(x, y)), expected, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def read_later(b, x, y):
    out = b.emit(half(x))
    return relax.Tuple([out, b.emit(op.matmul(x, y))])


def returned_too(b, x, y):
    return relax.Tuple([b.emit(op.add(x, y)), x])


def output_twice(b, x, y):
    out = b.emit(op.add(x, y))
    return relax.Tuple([out, out])


def reshaped_and_returned(b, x, y):
    view = b.emit(op.reshape(x, (36,)))
    return relax.Tuple([b.emit(op.add(x, y)), view])


def read_from_a_tuple(b, x, y):
    both = b.emit(relax.Tuple([x, y]))
    return relax.Tuple([b.emit(op.add(x, y)), b.emit(op.exp(relax.TupleGetItem(both, 0)))])


def moving_sum(b, x, y):
    head = op.strided_slice(x, [0], [0], [6], [1])
    return b.emit(op.add(op.add(head, op.flip(x, 0)), y))


UNSAFE = {
    "read later": read_later,
    "returned too": returned_too,
    "output twice": output_twice,
    "read from a tuple later": read_from_a_tuple,
    "flip": lambda b, x, y: b.emit(op.flip(x, 0)),
    "transpose": lambda b, x, y: b.emit(op.permute_dims(x)),
    "transpose inlined": lambda b, x, y: b.emit(op.add(op.permute_dims(x), y)),
    "element and transpose": lambda b, x, y: b.emit(op.add(x, op.permute_dims(x))),
    "neighbors": moving_sum,
    "element and mirror": lambda b, x, y: b.emit(op.add(op.flip(x, 1), x)),
    "product": lambda b, x, y: b.emit(op.matmul(x, y)),
    "itself": lambda b, x, y: x,
    "other shape": lambda b, x, y: b.emit(op.sum(x, 0)),
    "other dtype": lambda b, x, y: b.emit(op.astype(x, "int32")),
    "not read at all": lambda b, x, y: b.emit(op.exp(y)),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_donations_get_a_fresh_buffer(name):
    body = UNSAFE[name]
    types = [tensor_type(6, 6)] * 2
    assert donated(module(body, *types, **{DONATED: [[0, 0]]})) == []
    x, y = random_tensors((6, 6), (6, 6))
    kept = x.numpy().copy()
    expected = [t.numpy().copy() for t in flat(machine(module(body, *types))["main"](x, y))]
    got = flat(machine(module(body, *types, **{DONATED: [[0, 0]]}))["main"](x, y))
    np.testing.assert_array_equal(x.numpy(), kept)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


def test_a_returned_reshape_does_not_keep_its_source():
    mod = module(reshaped_and_returned, *[tensor_type(6, 6)] * 2, **{DONATED: [[0, 0]]})
    assert donated(mod) == [[0, 0]]
    x, y = random_tensors((6, 6), (6, 6))
    expected = x.numpy() + y.numpy(), x.numpy().reshape(36)
    out = machine(mod)["main"](x, y)
    assert out[0].data_ptr() == x.data_ptr()
    for a, b in zip(out, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


BOOL = tensor_type(dtype="bool")


def impure(build, *types, donations):
    """Return a module whose main, which may have effects, asks for donations."""
    params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params, {DONATED: donations}, pure=False):
        builder.emit_func_output(build(builder, *params))
    return builder.get()


def branch(builder, build):
    builder._begin_binding_block()
    result = builder.emit(build(builder))
    return relax.SeqExpr([builder._end_block()], result)


def choice(builder, condition, first, second):
    branches = (branch(builder, first), branch(builder, second))
    return builder.emit(relax.If(condition, *branches))


def through_a_tuple(b, c, x, y):
    both = b.emit(relax.Tuple([b.emit(relax.Tuple([y, x])), y]))
    same = b.emit(relax.TupleGetItem(b.emit(relax.TupleGetItem(both, 0)), 1))
    return b.emit(op.add(same, y))


def read_by_an_if(b, c, x, y):
    z = choice(b, c, lambda b: op.multiply(x, y), lambda b: op.multiply(y, y))
    return b.emit(op.add(x, z))


def computed_in_both_branches(b, c, x, y):
    return choice(b, c, lambda b: op.add(x, y), lambda b: op.multiply(x, y))


def computed_or_kept(b, c, x, y):
    return choice(b, c, lambda b: op.add(x, y), lambda b: x)


def read_by_a_declared_function(b, c, x, y):
    b.emit(call(DECLARED_SEE, x))
    return b.emit(op.add(x, y))


def read_by_the_results_reader(b, c, x, y):
    out = b.emit(op.add(x, y))
    return relax.Tuple([out, b.emit(op.matmul(out, y))])


def cast_and_renamed(b, c, x, y):
    same = b.match_cast(x, tensor_type(6, 6))
    return b.emit(op.add(b.emit(same), y))


GRANTED = [
    through_a_tuple,
    read_by_an_if,
    computed_in_both_branches,
    computed_or_kept,
    read_by_a_declared_function,
    read_by_the_results_reader,
    cast_and_renamed,
]


def kept_by_an_undeclared_function(b, c, x, y):
    b.emit(call(KEEP, x))
    return b.emit(op.add(x, y))


def result_kept(b, c, x, y):
    out = b.emit(op.add(x, y))
    b.emit(call(DECLARED_KEEP, out))
    return out


def alias_read_later(b, c, x, y):
    alias = b.emit(call(DECLARED_SAME, x, ty=tensor_type(6, 6)))
    out = b.emit(op.add(x, y))
    return relax.Tuple([out, b.emit(op.matmul(alias, y))])


def perhaps_read_later(b, c, x, y):
    z = choice(b, c, lambda b: x, lambda b: y)
    out = b.emit(op.add(x, y))
    return relax.Tuple([out, b.emit(op.matmul(z, y))])


def computed_in_one_branch(b, c, x, y):
    return choice(b, c, lambda b: op.add(x, y), lambda b: op.matmul(x, y))


def perhaps_returned(b, c, x, y):
    z = choice(b, c, lambda b: x, lambda b: y)
    return relax.Tuple([b.emit(op.add(x, y)), z])


REFUSED = [
    kept_by_an_undeclared_function,
    result_kept,
    alias_read_later,
    perhaps_read_later,
    computed_in_one_branch,
    perhaps_returned,
]


@pytest.mark.parametrize("build", GRANTED + REFUSED, ids=lambda build: build.__name__)
def test_donation_in_programs_with_control_flow_and_effects(build):
    types = [BOOL, *[tensor_type(6, 6)] * 2]
    plain = machine(impure(build, *types, donations=[]))["main"]
    mod = impure(build, *types, donations=[[1, 0]])
    assert donated(mod) == ([[1, 0]] if build in GRANTED else [])
    in_place = machine(mod)["main"]
    for taken in (True, False):
        condition = to_tensor(np.array(taken))
        x, y = random_tensors((6, 6), (6, 6))
        kept = x.numpy().copy()
        with outside():
            expected = [t.numpy().copy() for t in flat(plain(condition, x, y))]
            np.testing.assert_array_equal(x.numpy(), kept)
            got = flat(in_place(condition, x, y))
        assert (got[0].data_ptr() == x.data_ptr()) == (build in GRANTED)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-6)


def test_a_function_that_others_call_overwrites_nothing():
    mod = module(lambda b, x: b.emit(half(x)), tensor_type(6), **{DONATED: [[0, 0]]})
    x = relax.Var("x", tensor_type(6))
    builder = relax.BlockBuilder(mod)
    with builder.function("outer", [x]):
        halved = builder.emit(relax.Call(mod.get_global_var("main"), [x]))
        builder.emit_func_output(builder.emit(op.add(halved, x)))
    assert donated(builder.get()) == []


@pytest.mark.parametrize(
    "ty",
    [
        relax.ObjectType(),
        relax.TensorType(dtype="float32"),
        relax.TensorType((6,), dtype=None),
        relax.TupleType([tensor_type(6), relax.ObjectType()]),
    ],
    ids=["object", "rank", "dtype", "tuple"],
)
def test_nothing_is_overwritten_beside_what_nobody_can_compare_with(ty):
    mod = module(lambda b, x, y: b.emit(half(x)), tensor_type(6), ty, **{DONATED: [[0, 0]]})
    assert donated(mod) == []


def test_one_argument_passed_twice_to_a_kernel_is_not_donated():
    assert (
        donated(
            module(lambda b, x: b.emit(op.matmul(x, x)), tensor_type(4, 4), **{DONATED: [[0, 0]]})
        )
        == []
    )


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([[0, 0], [0, 1]], "parameter 0 twice"),
        ([[0, 0], [1, 0]], "output 0 twice"),
        ([[5, 0]], "parameter 5 of 2"),
        ([[0, 9]], "output 9 of 2"),
        ([[-1, 0]], "parameter -1"),
        ([[0]], "must be a list"),
        ("x0", "must be a list"),
    ],
    ids=label,
)
def test_malformed_requests_are_refused(pairs, says):
    mod = module(output_twice, *[tensor_type(6, 6)] * 2, **{DONATED: pairs})
    with pytest.raises(ArgumentError, match=says):
        pipeline(target("llvm"))(mod)
