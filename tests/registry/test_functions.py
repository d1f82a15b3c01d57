"""Rules of what a Relax program calls by name: packed functions and PrimFuncs."""

import functools

import numpy as np
import pytest
import tvm
from tvm import relax, te

import graphgrad as gg
from graphgrad.ir.provenance import read
from graphgrad.registry import find, sample, unregister
from graphgrad.registry.rule import composite, elementwise, find_function
from tests.running import F64, function, run

PACKED = "tests.registry.cube"
KERNEL = "cube_kernel"
X = np.linspace(0.5, 2.0, 6).reshape(2, 3)
ONES = np.ones((2, 3))
TYPE = relax.TensorType((2, 3), F64)


@tvm.register_global_func(PACKED, override=True)
def _cube(x, out=None):
    if out is None:
        return tvm.runtime.tensor(x.numpy() ** 3)
    return out.copyfrom(x.numpy() ** 3)


def dps(builder, x):
    return builder.emit(relax.call_dps_packed(PACKED, relax.Tuple([x]), TYPE))


def pure(builder, x):
    return builder.emit(relax.call_pure_packed(PACKED, x, ty_args=[TYPE]))


def direct(builder, x):
    return builder.emit(relax.Call(relax.ExternFunc(PACKED), [x], ty_args=[TYPE]))


def kernel(builder, x):
    return builder.emit_te(_scaled, x, primfunc_name_hint=KERNEL)


def _scaled(x):
    return te.compute(x.shape, lambda *i: x(*i) * 5.0, name="scaled")


CALLS = [(dps, PACKED), (pure, PACKED), (kernel, KERNEL)]
calls = pytest.mark.parametrize(("call", "name"), CALLS, ids=["dps", "pure", "kernel"])


@pytest.fixture
def registered():
    """Register a rule until the test ends."""
    names = []

    def register(rule, name=PACKED):
        gg.register_gradient(name)(rule)
        names.append(name)

    yield register
    for name in filter(find_function, names):
        unregister(name)


def slope(inputs, outputs, cotangents, attrs):
    """x̄ = ȳ · 3x²"""
    (x,), (ct,) = inputs, cotangents
    return [ct * (3.0 * x * x)]


@calls
def test_rule_by_the_name_of_what_is_called(call, name, registered):
    registered(slope, name)
    mod = function(call, ((2, 3), F64))
    (row,) = gg.coverage(mod).rows
    assert row.provenance == "user"
    assert row.op.endswith(f"({name})")
    _, gradient = run(gg.vjp(mod), "main_vjp", X, ONES)
    np.testing.assert_allclose(gradient, 3 * X**2)


def test_an_impure_call(registered):
    registered(slope)
    x = relax.Var("x", TYPE)
    builder = relax.BlockBuilder()
    with builder.function("main", [x], pure=False):
        builder.emit_func_output(direct(builder, x))
    _, gradient = run(gg.vjp(builder.get()), "main_vjp", X, ONES)
    np.testing.assert_allclose(gradient, 3 * X**2)


def test_a_users_rule_stays_where_others_are_derived(registered):
    registered(slope, KERNEL)
    mod = gg.vjp(function(kernel, ((2, 3), F64)), rules="derived")
    np.testing.assert_allclose(run(mod, "main_vjp", X, ONES)[1], 3 * X**2)


def test_without_a_rule_a_packed_function_is_missing_and_a_kernel_derived():
    with pytest.raises(gg.MissingGradientError, match=rf"call_dps_packed\({PACKED}\)"):
        gg.vjp(function(dps, ((2, 3), F64)))
    mod = gg.vjp(function(kernel, ((2, 3), F64)))
    np.testing.assert_allclose(run(mod, "main_vjp", X, ONES)[1], 5 * ONES)


def test_other_kinds_of_rules():
    elementwise(PACKED, samples=[])(lambda x, y: 3.0 * y / x)
    try:
        mod = gg.vjp(function(dps, ((2, 3), F64)))
        np.testing.assert_allclose(run(mod, "main_vjp", X, ONES)[1], 3 * X**2)
        unregister(PACKED)
        composite(PACKED, samples=[])(lambda x: x * x * x)
        mod = gg.vjp(gg.vjp(function(dps, ((2, 3), F64))), "main_vjp", wrt="x0")
        *_, second = run(mod, "main_vjp_vjp", X, ONES, 0 * ONES, ONES)
        np.testing.assert_allclose(second, 6 * X)
    finally:
        unregister(PACKED)


def test_declared_nondifferentiable():
    gg.nondifferentiable(PACKED)
    try:
        mod = function(dps, ((2, 3), F64))
        assert gg.coverage(mod).rows[0].provenance == "nondifferentiable"
        assert not run(gg.vjp(mod), "main_vjp", X, ONES)[1].any()
    finally:
        unregister(PACKED)


def results(ct):
    return {
        "arity": ([ct, ct], "returned 2 cotangent.s. for 1 input"),
        "shape": ([relax.op.permute_dims(ct)], r"shape \[3, 2\] for input 0 of shape \[2, 3\]"),
        "dtype": ([relax.op.astype(ct, "int32")], "dtype int32 for input 0 of dtype float64"),
        "type": ([1.0], "returned float for input 0"),
    }


@calls
@pytest.mark.parametrize("case", ["arity", "shape", "dtype", "type"])
def test_what_a_rule_returns_is_checked(call, name, case, registered):
    messages = {}

    def wrong(inputs, outputs, cotangents, attrs):
        result, messages[case] = results(cotangents[0])[case]
        return result

    registered(wrong, name)
    with pytest.raises(gg.RuleError) as caught:
        gg.vjp(function(call, ((2, 3), F64)))
    assert caught.match(messages[case])
    assert caught.match(rf"test_functions\.py:\d+: the rule for {name}")


def test_an_integer_argument_has_no_cotangent(registered):
    def both(inputs, outputs, cotangents, attrs):
        return [cotangents[0], cotangents[0]]

    def build(builder, x, i):
        return builder.emit(relax.call_dps_packed(PACKED, relax.Tuple([x, i]), TYPE))

    mod = function(build, ((2, 3), F64), ((2, 3), "int32"))
    registered(both)
    gg.vjp(mod)  # nobody asks for the second
    unregister(PACKED)
    registered(lambda i, o, c, a: c)
    with pytest.raises(gg.RuleError, match=r"returned 1 cotangent\(s\) for 2 input"):
        gg.vjp(mod)


@pytest.mark.parametrize("is_active", [True, False])
def test_what_gradients_read_must_not_be_overwritten(registered, is_active):
    """The in-place call is differentiated itself, or overwrites what another rule reads."""
    registered(slope)
    if not is_active:
        unregister(PACKED)
        gg.nondifferentiable(PACKED)

    def build(builder, x):
        y = builder.emit(relax.op.exp(x))
        z = builder.emit(relax.op.call_inplace_packed(PACKED, y, inplace_indices=[0], ty_args=TYPE))
        return builder.emit(relax.Tuple([y, z]))

    with pytest.raises(gg.MissingGradientError, match=rf"{PACKED}.* overwrites .*out of place"):
        gg.vjp(function(build, ((2, 3), F64)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("relax.gelu", r"no Relax op named 'relax\.gelu'.*relax\.nn\.gelu"),
        ("nn.gelu", r"no Relax op named 'nn\.gelu'.*relax\.nn\.gelu"),
        ("graphgrad.none", "no Relax op named"),
        ("tirx.erf", r"scalar intrinsic.*register_intrinsic_gradient"),
    ],
)
def test_names_that_must_be_meant_otherwise(name, message):
    with pytest.raises(gg.RuleError, match=message):
        gg.register_gradient(name)(slope)


def test_samples_are_of_ops():
    with pytest.raises(gg.RuleError, match="samples are calls of a Relax op"):
        gg.register_gradient(PACKED, samples=[sample((2, 3))])(slope)


def test_registering_twice_and_taking_back(registered):
    registered(slope)
    with pytest.raises(gg.RuleError, match=r"has a rule already, at .*test_functions\.py"):
        gg.register_gradient(PACKED)(lambda i, o, c, a: c)
    assert find_function(PACKED).function is slope
    assert find(PACKED) is None


def test_kernels_of_derivations_are_not_meant_by_a_users_name(registered):
    """An op's own kernel may have the name of a kernel of the user's."""
    mod = function(lambda b, x: b.emit(relax.op.exp(x)), ((2, 3), F64))
    derived = gg.vjp(mod, rules="derived")
    names = {gv.name_hint for gv in derived.get_global_vars()} - {"main", "main_vjp"}
    assert names
    for name in names:
        registered(lambda i, o, c, a: [c[0] * 100.0 for _ in i], name)
    again = gg.vjp(mod, rules="derived")
    np.testing.assert_allclose(run(again, "main_vjp", X, ONES)[1], np.exp(X))


def test_bindings_know_who_wrote_their_gradient(registered):
    registered(slope)

    def build(builder, x):
        return builder.emit_te(_scaled, dps(builder, builder.emit(relax.op.exp(x))))

    mod = gg.vjp(function(build, ((2, 3), F64)))
    bindings = [b for block in mod["main_vjp"].body.blocks for b in block.bindings]
    calls = [b.value for b in bindings if isinstance(b.value, relax.Call)]
    origins = [read(call.span).origin for call in calls]
    assert list(dict.fromkeys(origins)) == [None, "derived", "user", "hand"]
    assert read(calls[-1].span).origin == "hand"


def test_a_rule_is_for_all_shapes_of_a_kernel(registered):
    """The module names the second kernel of a name otherwise."""

    def build(builder, x, y):
        rows = [builder.emit(gg.call_te(_scaled, value, name=KERNEL)) for value in (x, y)]
        return builder.emit(relax.Tuple(rows))

    mod = function(build, ((2, 3), F64), ((4,), F64))
    assert {gv.name_hint for gv in mod.get_global_vars()} == {"main", KERNEL, f"{KERNEL}1"}
    registered(lambda inputs, outputs, cotangents, attrs: [7.0 * cotangents[0]], KERNEL)
    assert [row.provenance for row in gg.coverage(mod).rows] == ["user", "user"]
    *_, dx, dy = run(gg.vjp(mod), "main_vjp", X, np.ones(4), ONES, np.ones(4))
    assert (dx == 7).all()
    assert (dy == 7).all()


def test_a_declaration_is_for_all_shapes_of_a_kernel():
    def build(builder, x, y):
        rows = [builder.emit(gg.call_te(_scaled, value, name=KERNEL)) for value in (x, y)]
        return builder.emit(relax.Tuple(rows))

    mod = function(build, ((2, 3), F64), ((4,), F64))
    gg.nondifferentiable(KERNEL)
    try:
        assert {row.provenance for row in gg.coverage(mod).rows} == {"nondifferentiable"}
    finally:
        unregister(KERNEL)


def fails(inputs, outputs, cotangents, attrs):
    (x, weight), (ct,) = inputs, cotangents
    return [ct * weight, ct * x]


def misses_a_factor(inputs, outputs, cotangents, attrs):
    return [relax.op.matmul(cotangents[0], inputs[0])]


def returns_nothing(inputs, outputs, cotangents, attrs):
    [cotangents[0]]


@calls
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (fails, r"failed at line \d+: ValueError: not enough values to unpack"),
        (misses_a_factor, r"failed: ValueError: Matmul requires"),
        (returns_nothing, "returned nothing; return a list"),
    ],
    ids=["python", "tvm", "nothing"],
)
def test_what_a_rule_does_wrong_is_named(call, name, wrong, message, registered):
    registered(wrong, name)
    line = wrong.__code__.co_firstlineno
    with pytest.raises(gg.RuleError, match=rf"test_functions\.py:{line}: .*{name} {message}"):
        gg.vjp(function(call, ((2, 3), F64)))


def test_a_cotangent_of_unknown_shape_is_named(registered):
    def rule(inputs, outputs, cotangents, attrs):
        return [relax.op.unique(cotangents[0])]

    registered(rule)

    line = rule.__code__.co_firstlineno
    message = (
        rf"functions\.py:{line}: .* a cotangent of unknown shape for input 0 of shape \[2, 3\]"
    )
    with pytest.raises(gg.RuleError, match=message):
        gg.vjp(function(dps, ((2, 3), F64)))


@pytest.mark.parametrize("name", [PACKED, KERNEL, "relax.exp"])
def test_what_a_rule_cannot_be_called_with(name):
    def three(inputs, outputs, cotangents):
        return cotangents

    line = three.__code__.co_firstlineno
    message = rf"test_functions\.py:{line}: .* takes \(inputs, outputs, cotangents\), and is called"
    with pytest.raises(gg.RuleError, match=message):
        gg.register_gradient(name)(three)
    with pytest.raises(gg.RuleError, match="not a function of Python"):
        gg.register_gradient(name)(slope.__doc__)


class Slope:
    """A rule that is an object."""

    def __call__(self, inputs, outputs, cotangents, attrs):
        return [cotangents[0] * 3.0 * inputs[0] * inputs[0]] * self.count

    def __init__(self, count):
        self.count = count


def of_count(count, inputs, outputs, cotangents, attrs):
    return Slope(count)(inputs, outputs, cotangents, attrs)


def logged(rule):
    @functools.wraps(rule)
    def wrapper(*arguments):
        return rule(*arguments)

    return wrapper


@logged
def twice(inputs, outputs, cotangents, attrs):
    return Slope(2)(inputs, outputs, cotangents, attrs)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (Slope(2), Slope.__call__.__code__),
        (functools.partial(of_count, 2), of_count.__code__),
        (twice, twice.__wrapped__.__code__),
    ],
    ids=["object", "partial", "decorated"],
)
def test_where_a_rule_is_written(rule, code, registered):
    registered(rule)
    with pytest.raises(gg.RuleError, match=rf"functions\.py:{code.co_firstlineno}: .*returned 2"):
        gg.vjp(function(dps, ((2, 3), F64)))


def by_packed(inputs, outputs, cotangents, attrs):
    """A rule whose own gradient nothing is known of."""
    (x,), (ct,) = inputs, cotangents
    square = relax.call_dps_packed(f"{PACKED}.square", relax.Tuple([x.expr]), x.ty)
    return [ct * 3.0 * x.emitter.emit(square)]


@tvm.register_global_func(f"{PACKED}.square", override=True)
def _square(x, out):
    out.copyfrom(x.numpy() ** 2)


@calls
def test_a_rule_without_a_second_order_is_named(call, name, registered):
    registered(by_packed, name)
    once = gg.vjp(function(call, ((2, 3), F64)))
    line = by_packed.__code__.co_firstlineno
    with pytest.raises(gg.MissingGradientError, match=rf"rule at .*functions\.py:{line} computes"):
        gg.vjp(once, "main_vjp", wrt="x0")
