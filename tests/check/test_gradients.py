"""`check_grads`: every kind of subject passes when right, and is named when wrong."""

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, te

import graphgrad as gg
from graphgrad import models
from graphgrad.check import machine
from graphgrad.check.machine import UNOPTIMIZED, Machine
from graphgrad.ops.define import call_op, define_op
from graphgrad.registry import sample, unregister
from tests import unknown_ops
from tests.labels import label
from tests.running import F64, function

op = relax.op
X = np.linspace(0.2, 1.7, 6).reshape(2, 3)


@pytest.fixture
def user_rule():
    """Register a rule of a user's until the test ends."""
    names = []

    def register(name, rule, samples=()):
        names.append(name)
        gg.register_gradient(name, samples=samples)(rule)

    yield register
    for name in names:
        unregister(name)


def half_too_much(inputs, outputs, cotangents, attrs):
    return [1.5 * cotangents[0]]


# Rules


def test_rule_is_checked_on_all_its_samples():
    result = gg.check_grads("relax.tanh", order=2)
    assert result.precision == "float64"
    assert len(result.parts) >= 2
    assert result.error < 1e-8
    assert "relax.tanh [" in result.parts[0].label


def test_wrong_rule_of_a_user_is_caught(user_rule):
    user_rule("relax.tanh", half_too_much, [sample((2, 3))])
    with pytest.raises(gg.GradientMismatch, match=r"relax\.tanh \[\(2,3\)\].*order 1") as caught:
        gg.check_grads("relax.tanh")
    error = caught.value
    assert error.op == "relax.tanh"
    assert error.input == "input 0"
    assert len(error.index) == 2
    assert abs(error.given) > 1.5 * abs(error.expected) * (1 - 1e-6)


@pytest.mark.parametrize(("name", "order"), [("relax.permute_dims", 1), ("relax.tanh", 2)])
def test_jacobian_of_a_rule(name, order):
    gg.check_grads(name, jacobian=True, order=order)


def test_rule_without_samples(user_rule):
    user_rule("relax.tanh", half_too_much)
    with pytest.raises(gg.ArgumentError, match="no samples"):
        gg.check_grads("relax.tanh")


@pytest.mark.parametrize(
    ("name", "message"),
    [("relax.tanhh", "no gradient rule"), ("relax.floor", "declared not differentiable")],
)
def test_names_that_are_not_checked(name, message):
    with pytest.raises(gg.ArgumentError, match=message):
        gg.check_grads(name)


def test_rule_takes_no_inputs():
    with pytest.raises(gg.ArgumentError, match="samples"):
        gg.check_grads("relax.tanh", [X])


# Functions


def chain(*calls, dtype="float32"):
    def build(builder, x):
        for call in calls:
            x = builder.emit(call(x))
        return x

    return function(build, ((2, 3), dtype))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_function_is_checked_in_float64(order, dtype):
    result = gg.check_grads(chain(op.tanh, op.exp, dtype=dtype), order=order)
    assert [part.op for part in result.parts] == ["relax.tanh", "relax.exp", None]
    assert {part.precision for part in result.parts} == {"float64"}
    assert {len(part.inputs) for part in result.parts} == {2 * order - 1}
    assert result.error < 1e-8


@pytest.mark.parametrize("subject", [lambda mod: mod, lambda mod: (mod, "main")])
@pytest.mark.parametrize("inputs", [None, X, [X], {"x0": X}], ids=["none", "array", "list", "dict"])
def test_ways_to_give_a_function_and_inputs(subject, inputs):
    gg.check_grads(subject(chain(op.tanh, dtype=F64)), inputs)


def test_wrong_op_of_a_function_is_named(user_rule):
    user_rule("relax.tanh", half_too_much)
    with pytest.raises(gg.GradientMismatch, match=r"relax\.tanh \(value 'lv1'\)") as caught:
        gg.check_grads(chain(op.exp, op.tanh, op.sin))
    assert caught.value.op == "relax.tanh"
    assert caught.value.node is None


def test_symbolic_shape_with_and_without_inputs():
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64"), 3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.tanh(x)))
    gg.check_grads(builder.get())
    gg.check_grads(builder.get(), np.ones((5, 3), "float32"))


def test_integer_inputs_are_not_differentiated():
    mod = function(
        lambda b, x, i: b.emit(op.take(x, i, axis=1)), ((2, 3), "float32"), ((4,), "int64")
    )
    result = gg.check_grads(mod, [X.astype("float32"), np.array([0, 2, 2, 1])])
    assert [check.name for check in result.parts[-1].inputs] == ["input 'x0'"]


def refused(call, x):
    raise TypeError("never lowered")


NEVER = define_op("never_lowered", ["x"], lambda call: call.args[0].ty, refused)


def test_what_cannot_be_compiled_at_all(user_rule):
    user_rule(NEVER.name, lambda i, o, c, a: [c[0]])
    with pytest.raises(gg.ModelError, match=r"cannot be compiled: .*never lowered"):
        gg.check_grads(chain(lambda x: call_op(NEVER, [x])))


def test_kernels_off_the_way_stay_as_they_are():
    def build(builder, x, i):
        index = builder.emit_te(tvm.topi.add, i, i)
        shifted = builder.emit_te(tvm.topi.minimum, index, index)
        return builder.emit(op.exp(builder.emit(op.take(x, shifted, axis=1))))

    result = gg.check_grads(function(build, ((2, 3), "float32"), ((4,), "int64")))
    assert [part.op for part in result.parts] == ["relax.take", "relax.exp", None]
    assert result.precision == "float64"


def test_parts_whose_kernels_have_the_same_name():
    def powers(call, x):
        return te.compute(x.shape, lambda *i: te.power(x(*i), float(call.attrs["power"])))

    power = define_op("test_power", ["x"], lambda call: call.args[0].ty, powers)
    result = gg.check_grads(
        chain(*(lambda x, k=k: call_op(power, [x], power=k) for k in (2, 3)), dtype=F64), X
    )
    assert [part.op for part in result.parts] == ["graphgrad.test_power"] * 2 + [None]


def test_kernels_alone():
    mod = function(lambda b, x: b.emit_te(tvm.topi.exp, x), ((2, 3), "float32"))
    assert [part.op for part in gg.check_grads(mod).parts] == ["relax.call_tir(exp)", None]


def test_function_without_calls():
    x = relax.Var("x", relax.TensorType([3], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(relax.Tuple([x, x]))
    assert [part.label for part in gg.check_grads(builder.get()).parts] == ["function 'main'"]


def test_function_without_a_float_result():
    with pytest.raises(gg.NotDifferentiableError, match="no float"):
        gg.check_grads(chain(op.argmax))


def test_tuples_between_parts():
    def build(builder, x):
        parts = builder.emit(op.split(x, 3, axis=1))
        first = builder.emit(op.exp(builder.emit(relax.TupleGetItem(parts, 2))))
        return builder.emit(op.multiply(first, builder.emit(relax.TupleGetItem(parts, 0))))

    result = gg.check_grads(function(build, ((2, 3), "float32")))
    assert [part.op for part in result.parts] == [
        "relax.split",
        "relax.exp",
        "relax.multiply",
        None,
    ]


def test_every_wrong_partial_derivative_is_found_by_the_jacobian(user_rule):
    def one_element(inputs, outputs, cotangents, attrs):
        first = cotangents[0].emitter.lift(relax.const(1 + 1e-6 * np.eye(1, 6).reshape(2, 3), F64))
        return [cotangents[0] * first]

    user_rule("relax.negative", lambda i, o, c, a: [-one_element(i, o, c, a)[0]])
    with pytest.raises(gg.GradientMismatch, match=r"\(0, 0\)"):
        gg.check_grads(chain(op.negative, dtype=F64), jacobian=True)


def test_jacobian_of_large_functions_is_refused():
    mod = function(lambda b, x: b.emit(op.tanh(x)), ((50, 50), F64))
    with pytest.raises(gg.ArgumentError, match="too large"):
        gg.check_grads(mod, jacobian=True)


def test_missing_gradients_are_told_first():
    mod = function(lambda b, x: b.emit_te(unknown_ops.calls_out, x), ((2, 3), "float32"))
    with pytest.raises(gg.MissingGradientError, match=r"relax\.call_tir\(calls_out\)"):
        gg.check_grads(mod)


def single_only(call):
    if str(call.args[0].ty.dtype) != "float32":
        raise TypeError("float32 alone is served")
    return call.args[0].ty


def sine_of_single(call, x):
    if str(x.dtype) != "float32":
        raise TypeError("float32 alone is lowered")
    return tvm.topi.sin(x)


TYPED = define_op("typed_sine", ["x"], single_only, sine_of_single)
LOWERED = define_op("lowered_sine", ["x"], lambda call: call.args[0].ty, sine_of_single)


@pytest.mark.parametrize(
    ("own", "note"),
    [(TYPED, "takes no float64"), (LOWERED, "in float64 it cannot be compiled: ")],
    ids=["typed", "lowered"],
)
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_what_cannot_be_promoted_is_checked_in_float32(user_rule, own, note, factor):
    user_rule(own.name, lambda i, o, c, a: [c[0] * factor * op.cos(i[0].expr)])
    mod = chain(op.tanh, lambda x: call_op(own, [x]))
    if factor != 1:
        with pytest.raises(gg.GradientMismatch, match=own.name):
            gg.check_grads(mod)
        return
    result = gg.check_grads(mod)
    assert result.precision == "float32"
    assert [part.precision for part in result.parts] == ["float64", "float32", "float32"]
    assert [note in part.note for part in result.parts] == [False, True, True]
    assert note in str(result)


def test_relu_near_and_on_its_kink():
    x = np.array([[0.0, 1.0, 2e-4], [-1.0, 3.0, -1e-5]])
    on_kink = gg.check_grads(chain(op.nn.relu, dtype=F64), x)
    assert {check.kink for _, check in on_kink.kinks} == {"exact"}
    assert "on a kink" in str(on_kink)
    x[0, 0] = 0.5
    near = gg.check_grads(chain(op.nn.relu, dtype=F64), x)
    assert {check.kink for _, check in near.kinks} == {"near"}


def test_wrong_gradient_beside_a_kink_is_caught(user_rule):
    user_rule("relax.nn.relu", lambda i, o, c, a: [c[0] * 0.5])
    with pytest.raises(gg.GradientMismatch, match="beside a kink"):
        gg.check_grads(chain(op.nn.relu, dtype=F64), np.array([[0.0, 1.0, 2.0], [-1.0, 3.0, 4.0]]))


def test_mask_of_minus_infinity():
    mask = np.where(np.eye(3) > 0, -np.inf, 0.0)

    def build(builder, x):
        masked = builder.emit(op.add(x, relax.const(mask.astype("float32"))))
        return builder.emit(op.nn.softmax(masked))

    gg.check_grads(function(build, ((3, 3), "float32")))


@pytest.mark.parametrize("inputs", [[X, X], {"y": X}, X.T, X.astype("float32"), [None]])
def test_inputs_that_do_not_fit(inputs):
    with pytest.raises(gg.InputError):
        gg.check_grads(chain(op.tanh, dtype=F64), inputs)


# Models


@pytest.fixture
def model():
    return gg.from_onnx(models.mlp((4, 5, 3)))


@pytest.mark.parametrize("order", [1, 2])
def test_model(model, order):
    result = gg.check_grads(model, order=order)
    assert result.precision == "float64"
    assert len(result.parts) == len(model.proto.graph.node) + 1
    assert [part.node for part in result.parts[:-1]] == [n.name for n in model.proto.graph.node]
    names = {check.name for check in result.parts[-1].inputs}
    assert {f"input {name!r}" for name in [*model.inputs, *model.params]} <= names


def test_first_wrong_node_of_a_model_is_named(model, user_rule):
    node = next(n for n in model.proto.graph.node if n.op_type == "Relu")
    user_rule("relax.nn.relu", half_too_much)
    with pytest.raises(gg.GradientMismatch, match=rf"node '{node.name}'") as caught:
        gg.check_grads(model)
    assert caught.value.node == node.name
    assert caught.value.op == "relax.nn.relu"


def test_frozen_parameters_are_not_differentiated(model):
    frozen = model.freeze(*model.params)
    result = gg.check_grads(frozen)
    assert len(result.parts[-1].inputs) == 1


def onnx_model(node, shape, initializers):
    """Return the model of one node that maps x to y."""
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name in ("x", "y"))
    tensors = [onnx.numpy_helper.from_array(a, name) for name, a in initializers.items()]
    graph = helper.make_graph([node], "one node", [x], [y], tensors)
    opset = helper.make_opsetid("", 17)
    return gg.from_onnx(helper.make_model(graph, opset_imports=[opset], ir_version=8))


def test_batch_norm_in_training_form():
    names = ["scale", "bias", "mean", "var"]
    node = onnx.helper.make_node(
        "BatchNormalization", ["x", *names], ["y", "", ""], "norm", training_mode=1
    )
    values = {name: np.linspace(0.5, 1.5, 3, dtype="float32") for name in names}
    result = gg.check_grads(onnx_model(node, [4, 3, 2], values))
    assert [part.node for part in result.parts] == ["norm", None]
    assert result.error < 1e-8


def test_dropout_keeps_its_mask():
    node = onnx.helper.make_node("Dropout", ["x", "ratio", "training"], ["y"], "drop")
    settings = {"ratio": np.float32(0.5).reshape(()), "training": np.array(True)}
    result = gg.check_grads(onnx_model(node, [4, 5], settings))
    assert [part.node for part in result.parts] == ["drop", None]


# Given pairs


def test_pair():
    result = gg.check_grads(
        lambda a, b: a @ b,
        [X, X.T.copy()],
        backward=lambda inputs, outputs, cts: [cts[0] @ inputs[1].T, inputs[0].T @ cts[0]],
        jacobian=True,
    )
    assert len(result.parts[0].inputs) == 2


def test_pair_with_several_outputs_and_integers():
    def forward(x, i):
        return x[i], np.argmax(x), x.sum()

    def backward(inputs, outputs, cotangents):
        x, i = inputs
        gradient = np.full_like(x, cotangents[2])
        np.add.at(gradient, i, cotangents[0])
        assert cotangents[1] is None
        return [gradient, None]

    gg.check_grads(forward, [X[0], np.array([0, 0, 2])], backward=backward)


def test_wrong_pair():
    with pytest.raises(gg.GradientMismatch, match="sin") as caught:
        gg.check_grads(np.sin, [X], backward=lambda xs, ys, cts: [cts[0] * np.sin(xs[0])])
    assert caught.value.expected != caught.value.given


def test_pair_in_float32_is_told():
    x = X.astype("float32")
    result = gg.check_grads(np.sin, [x], backward=lambda xs, ys, cts: [cts[0] * np.cos(xs[0])])
    assert result.precision == "float32"


@pytest.mark.parametrize(
    "backward",
    [lambda xs, ys, cts: [None], lambda xs, ys, cts: [cts[0], cts[0]], lambda xs, ys, cts: []],
    ids=["nothing", "too many", "too few"],
)
def test_backward_that_gives_no_gradients(backward):
    with pytest.raises(gg.InputError, match="backward returned"):
        gg.check_grads(np.sin, [X], backward=backward)


def test_backward_with_a_gradient_for_integers():
    with pytest.raises(gg.InputError, match="input 1 of dtype int64"):
        gg.check_grads(
            lambda x, i: x[i],
            [X[0], np.array([0])],
            backward=lambda xs, ys, cts: [xs[0], xs[1]],
        )


# Forward mode


MODES = [("fwd",), ("fwd", "rev")]


@pytest.mark.parametrize("modes", MODES, ids=label)
def test_forward_mode_of_every_kind_of_subject(modes):
    a = te.placeholder((2, 3), F64, name="a")
    squares = te.compute((2, 3), lambda i, j: a[i, j] * a[i, j])
    for subject in ("relax.tanh", chain(op.tanh), (squares, a)):
        result = gg.check_grads(subject, modes=modes, order=2)
        assert result.precision == "float64"
        assert result.error < 1e-8


@pytest.mark.parametrize("modes", MODES, ids=label)
def test_wrong_forward_mode_is_caught(user_rule, modes):
    user_rule("relax.tanh", half_too_much, [sample((2, 3))])
    with pytest.raises(gg.GradientMismatch, match=r"(forward mode|the gradient) gives"):
        gg.check_grads("relax.tanh", modes=modes)


def test_modes_that_disagree_are_named(monkeypatch):
    tangents = Machine.tangents
    monkeypatch.setattr(
        Machine, "tangents", lambda *given: [2.0 * array for array in tangents(*given)]
    )
    gg.check_grads(chain(op.tanh))
    with pytest.raises(gg.GradientMismatch, match=r"forward mode gives .*, the gradient gives"):
        gg.check_grads(chain(op.tanh), modes=("rev", "fwd"))
    with pytest.raises(gg.GradientMismatch, match=r"differences give .*, forward mode gives"):
        gg.check_grads(chain(op.tanh), modes=("fwd",))


def test_given_backward_has_no_forward_mode():
    with pytest.raises(gg.ArgumentError, match="no forward mode"):
        gg.check_grads(np.sin, [X], backward=lambda xs, ys, cts: cts, modes=("fwd",))


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {"order": 3},
        {"order": 0},
        {"modes": ("fwd", "back")},
        {"modes": ("fwd", "fwd")},
        {"modes": ()},
        {"modes": "rev"},
        {"modes": None},
        {"backward": lambda *given: given},
    ],
    ids=label,
)
def test_arguments_that_are_not_served(options):
    with pytest.raises(gg.ArgumentError):
        gg.check_grads(chain(op.tanh), **options)


@pytest.mark.parametrize("subject", [3, None, (1, 2), ("relax.tanh",)], ids=str)
def test_subjects_that_are_none(subject):
    with pytest.raises(gg.ArgumentError, match="subject"):
        gg.check_grads(subject)


def test_numpy_function_needs_backward_and_inputs():
    with pytest.raises(gg.ArgumentError, match="backward="):
        gg.check_grads(np.sin, [X])
    with pytest.raises(gg.InputError, match="needs inputs"):
        gg.check_grads(np.sin, backward=lambda xs, ys, cts: cts)
    with pytest.raises(gg.ArgumentError, match="order=2"):
        gg.check_grads(np.sin, [X], backward=lambda xs, ys, cts: cts, order=2)


@pytest.mark.parametrize("name", ["main", "part0"])
def test_a_small_function_is_compiled_with_its_parts(monkeypatch, name):
    """Whatever it is called: a name of its own is that of no part."""
    compiled = []

    def counted(mod, *rest):
        compiled.append({var.name_hint for var in mod.functions})
        return Machine(mod, *rest)

    monkeypatch.setattr("graphgrad.check.compiler.Machine", counted)
    y = function(lambda b, x: b.emit(op.tanh(b.emit(op.exp(x)))), ((2, 3), F64))
    check = gg.check_grads((tvm.IRModule({name: y["main"].with_attr("global_symbol", name)}), name))
    assert [part.op for part in check.parts] == ["relax.exp", "relax.tanh", None]
    (functions,) = compiled
    assert name in functions and len([each for each in functions if "part" in each]) >= 4


def test_a_function_of_one_op_is_compiled_once(monkeypatch):
    """Its values are what it is given, and it is its own part."""
    compiled = []

    def counted(mod, *rest):
        compiled.append(mod)
        return Machine(mod, *rest)

    for module in ("compiler", "functions"):
        monkeypatch.setattr(f"graphgrad.check.{module}.Machine", counted)
    gg.check_grads(function(lambda b, x: b.emit(op.tanh(x)), ((2, 3), F64)))
    assert len(compiled) == 1


# Rules of users


def second_order_is_lost(inputs, outputs, cotangents, attrs):
    """Right at order one: the slope comes from a kernel that is declared not differentiable."""
    (x,), (ct,) = inputs, cotangents
    slope = gg.call_te(
        lambda x: te.compute(x.shape, lambda *i: te.exp(x(*i)), name="slope"), x, name="tests.slope"
    )
    return [ct * slope]


def test_order_two_of_a_rule_is_named(user_rule):
    user_rule("relax.exp", second_order_is_lost, [sample((2, 3))])
    gg.nondifferentiable("tests.slope")
    line = second_order_is_lost.__code__.co_firstlineno
    try:
        for subject in ("relax.exp", chain(op.exp)):
            gg.check_grads(subject)
            with pytest.raises(gg.GradientMismatch, match=rf"test_gradients\.py:{line}.*order 2"):
                gg.check_grads(subject, order=2)
    finally:
        unregister("tests.slope")


def slope_of_exp(inputs, outputs, cotangents, attrs):
    return [cotangents[0] * outputs[0]]


def test_speed_of_a_rule_is_told(user_rule):
    user_rule("relax.exp", slope_of_exp, [sample((2, 3)), sample((4, 5)), sample(("n", 2))])
    result = gg.check_grads("relax.exp")
    speeds = [part.speed for part in result.parts]
    assert [speed is None for speed in speeds] == [True, False, True]
    speed = speeds[1]
    assert speed.rule > 0
    assert speed.derived > 0
    assert speed.to_json()["ratio"] == speed.rule / speed.derived
    assert "relax.exp [(4,5)]: with the rule, value and gradient take" in str(result)
    of_function = gg.check_grads(chain(op.exp, op.tanh, op.exp))
    assert [part.speed is None for part in of_function.parts] == [False, True, False, True]
    assert of_function.parts[0].speed is of_function.parts[2].speed  # of equal parts, once
    assert of_function.parts[0].to_json()["speed"]["dtype"] == "float32"


def test_speed_is_of_rules_of_users_that_something_is_derived_beside(user_rule):
    assert all(part.speed is None for part in gg.check_grads("relax.tanh").parts)
    user_rule("tests.check.packed", slope_of_exp)

    @tvm.register_global_func("tests.check.packed", override=True)
    def packed(x, out):
        out.copyfrom(np.exp(x.numpy()))

    def call(x):
        return relax.call_dps_packed("tests.check.packed", relax.Tuple([x]), x.ty)

    part = gg.check_grads(chain(call, dtype=F64)).parts[0]
    assert part.rule is not None
    assert part.speed is None


def test_a_rule_that_fails_in_the_dtypes_of_the_function(user_rule):
    def of_float64(inputs, outputs, cotangents, attrs):
        return [
            relax.op.multiply(cotangents[0], relax.op.multiply(outputs[0], relax.const(1.0, F64)))
        ]

    user_rule("relax.exp", of_float64)
    gg.check_grads(chain(op.exp, dtype=F64))
    with pytest.raises(gg.RuleError, match=r"test_gradients\.py:\d+: the rule for relax\.exp"):
        gg.check_grads(chain(op.exp))


@pytest.mark.parametrize(
    ("extent", "target"), [(8, UNOPTIMIZED), (100, "llvm"), ("n", "llvm")], ids=str
)
def test_small_tensors_alone_are_not_optimized(monkeypatch, extent, target):
    targets = []

    def compile_module(mod, chosen):
        targets.append(chosen)
        return gg.compile(mod, chosen)

    monkeypatch.setattr(machine, "compile_module", compile_module)
    extent = tvm.tirx.Var("n", "int64") if extent == "n" else extent
    tanh = function(lambda builder, x: builder.emit(relax.op.tanh(x)), ((extent, 100), F64))
    assert Machine(tanh).run("main", [np.zeros((8 if target == UNOPTIMIZED else 100, 100))])
    assert targets == [target]
