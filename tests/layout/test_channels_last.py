import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.provenance import read, span_of
from graphgrad.ir.tensor import type_shape
from graphgrad.layout import orders
from tests.layout.rewriting import rewritten_module, stays
from tests.running import function, run

o, nn = relax.op, relax.op.nn
IMAGE, WEIGHT = ((2, 4, 5, 3), "float64"), ((4, 4, 3, 3), "float64")
FILTERS = orders.filters_last(4)


def named_function(build, *names):
    """Return a function of x and w whose bindings have names of their own and no others."""
    x, w = (
        relax.Var(n, relax.TensorType(*t)) for n, t in zip(("x", "w"), (IMAGE, WEIGHT), strict=True)
    )
    bindings, builder = [], relax.BlockBuilder()

    def bind(name, value):
        value = builder.normalize(value)
        var = relax.Var(name, value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    result = build(bind, x, w)
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    main = relax.Function([x, w], body, result.ty).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": main})


def bindings(mod):
    return [b for block in mod["main"].body.blocks for b in block.bindings]


def values(mod):
    return {binding.var.name: binding.value for binding in bindings(mod)}


def permutations(mod):
    return [
        name
        for name, value in values(mod).items()
        if getattr(getattr(value, "op", None), "name", "") == "relax.permute_dims"
    ]


def arrays(mod):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(type_shape(p.ty)) for p in mod["main"].params]


def check(mod, **options):
    """Compare a function with its rewritten form; return that."""
    rewritten = rewritten_module(mod, **options)
    given = arrays(mod)
    for new, old in zip(run(rewritten, "main", *given), run(mod, "main", *given), strict=True):
        assert new.shape == old.shape
        np.testing.assert_allclose(new, old, rtol=1e-12, atol=1e-12)
    return rewritten


def layers(bind, x, w):
    y = bind("layer.1/conv", nn.conv2d(x, w, padding=1))
    y = bind("layer.1/relu", nn.relu(y))
    y = bind("layer.2/conv", nn.conv2d(y, w, padding=1))
    return bind("result", o.add(y, x))


def test_names_stay_and_conversions_have_names_of_their_own():
    rewritten = check(named_function(layers))
    assert list(values(rewritten))[:-1] == [
        "x.permuted", "w.permuted",
        "layer.1/conv", "layer.1/relu", "layer.2/conv", "result", "result.permuted",
    ]  # fmt: skip
    assert permutations(rewritten) == ["x.permuted", "w.permuted", "result.permuted"]
    assert [p.name for p in rewritten["main"].params] == ["x", "w"]


def test_spans_stay_and_conversions_have_that_of_what_asks_for_them():
    span = span_of("the node", "Conv")

    def build(bind, x, w):
        call = nn.conv2d(x, w, padding=1)
        return bind("y", relax.Call(call.op, call.args, call.attrs, call.ty_args, span))

    rewritten = values(rewritten_module(named_function(build)))
    for name in ("x.permuted", "w.permuted", "y"):
        assert read(rewritten[name].span).node == "the node"


def test_a_name_that_is_taken_is_no_name_of_a_conversion():
    def build(bind, x, w):
        other = bind("x.permuted", nn.relu(x))
        return bind("y", o.add(bind("conv", nn.conv2d(x, w, padding=1)), other))

    names = [binding.var.name for binding in bindings(check(named_function(build)))]
    assert len(set(names)) == len(names) and "x.permuted2" in names


@pytest.mark.parametrize("name", ["layer.1/conv", "layer.1/relu", "result"])
def test_a_kept_value_has_its_shape_and_all_that_follows_depends_on_it(name):
    mod = named_function(layers)
    rewritten = check(mod, keep=[name])
    kept = next(b.var for b in bindings(rewritten) if b.var.name == name)
    assert type_shape(kept.ty) == [2, 4, 5, 3]
    expected = gradient(mod, name)
    np.testing.assert_allclose(gradient(rewritten, name), expected, rtol=1e-10)


def test_a_kept_permutation_that_would_cancel_stays():
    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        rows = bind("rows", o.permute_dims(y, [0, 2, 3, 1]))
        return bind("result", o.multiply(rows, rows))

    mod = named_function(build)
    assert "rows" not in values(rewritten_module(mod))
    np.testing.assert_allclose(
        gradient(rewritten_module(mod, keep=["rows"]), "rows"), gradient(mod, "rows"), rtol=1e-10
    )


def test_a_kept_reshape_is_not_passed_by():
    """Where another reshape of its source would do."""

    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        mean = bind("mean", o.mean(y, [0, 2, 3], keepdims=True))
        gate = bind("gate", o.reshape(mean, (4, 1, 1)))
        return bind("result", o.multiply(y, gate))

    mod = named_function(build)
    rewritten = rewritten_module(mod, keep=["gate"])
    np.testing.assert_allclose(gradient(rewritten, "gate"), gradient(mod, "gate"), rtol=1e-10)


def test_a_kept_element_of_a_tuple_has_its_name():
    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        pair = bind("pair", relax.Tuple([y, x]))
        return bind("result", o.exp(bind("first", relax.TupleGetItem(pair, 0))))

    mod = named_function(build)
    assert "first" not in values(rewritten_module(mod))
    rewritten = rewritten_module(mod, keep=["first"])
    np.testing.assert_allclose(gradient(rewritten, "first"), gradient(mod, "first"), rtol=1e-10)


def gradient(mod, name):
    """Return the gradient of a value for a cotangent of the result."""
    given = arrays(mod)
    shape = type_shape(mod["main"].ret_ty)
    ct = np.random.default_rng(1).standard_normal(shape)
    return run(gg.vjp(mod, "main", wrt=[name]), "main_vjp", *given, ct)[-1]


def test_stored_parameters():
    """Read as they are by convolutions, and permuted for everything else."""

    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        return bind("result", o.add(y, bind("rows", o.sum(w, [0, 1, 2]))))

    mod = named_function(build)
    rewritten = rewritten_module(mod, storage={"w": FILTERS})
    assert type_shape(rewritten["main"].params[1].ty) == [3, 3, 4, 4]
    x, w = arrays(mod)
    [new] = run(rewritten, "main", x, np.ascontiguousarray(w.transpose(FILTERS)))
    np.testing.assert_allclose(new, run(mod, "main", x, w)[0], rtol=1e-12)


def test_without_a_convolution_nothing_changes():
    mod = named_function(lambda bind, x, w: bind("y", nn.max_pool2d(x, 2)))
    assert stays(mod)


def test_without_a_convolution_stored_parameters_are_permuted():
    mod = named_function(lambda bind, x, w: bind("y", o.sum(nn_relu(bind, w), [0])))
    rewritten = rewritten_module(mod, storage={"w": FILTERS})
    x, w = arrays(mod)
    [new] = run(rewritten, "main", x, np.ascontiguousarray(w.transpose(FILTERS)))
    np.testing.assert_allclose(new, run(mod, "main", x, w)[0], rtol=1e-12)


def nn_relu(bind, w):
    return bind("relu", nn.relu(w))


@pytest.mark.parametrize("layouts", [
    {"data_layout": "NHWC", "kernel_layout": "HWIO"}, {"out_layout": "NHWC"},
    {"data_layout": "NHWC"},
])  # fmt: skip
def test_a_layout_that_somebody_chose_stays(layouts):
    shapes = ((2, 4, 4, 4), (4, 4, 4, 4))
    mod = function(
        lambda b, x, w: b.emit(nn.conv2d(x, w, **layouts)), *((s, "float32") for s in shapes)
    )
    assert stays(mod)


def test_a_function_that_overwrites_memory_stays():
    def build(b, x, w):
        y = b.emit(nn.conv2d(x, w, padding=1))
        return b.emit(
            o.call_inplace_packed("tests.layout.fill", y, inplace_indices=[0], ty_args=y.ty)
        )

    x, w = (
        relax.Var(n, relax.TensorType(*t)) for n, t in zip(("x", "w"), (IMAGE, WEIGHT), strict=True)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], pure=False):
        builder.emit_func_output(build(builder, x, w))
    mod = builder.get()
    assert stays(mod)


def test_branches_read_values_as_the_model_has_them():
    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        condition = bind("condition", o.less(bind("s", o.sum(y)), relax.const(0.0, "float64")))
        branches = []
        for op in (o.negative, o.exp):
            part = relax.Var("part", y.ty)
            value = relax.BlockBuilder().normalize(op(y))
            branches.append(
                relax.SeqExpr([relax.BindingBlock([relax.VarBinding(part, value)])], part)
            )
        return bind("result", relax.If(condition, *branches))

    check(named_function(build))


def test_a_cast_of_shapes_reads_values_as_the_model_has_them():
    n = tvm.tirx.Var("n", "int64")

    def build(b, x, w):
        y = b.emit(nn.conv2d(x, w, padding=1))
        cast = b.match_cast(y, relax.TensorType([2, 4, n, 3], "float64"))
        return b.emit(nn.relu(cast))

    x, w = (
        relax.Var(v, relax.TensorType(*t)) for v, t in zip(("x", "w"), (IMAGE, WEIGHT), strict=True)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(build(builder, x, w))
    check(builder.get())


def test_what_has_no_known_shape_is_read_as_the_model_has_it():
    def build(b, x, y, w):
        z = b.emit(nn.conv2d(x, w, padding=1))
        return relax.Tuple([b.emit(o.add(z, y)), b.emit(o.concat([y, z], axis=1))])

    unknown = relax.TensorType(dtype="float64", ndim=4)
    x, y, w = (
        relax.Var(name, ty)
        for name, ty in zip(
            "xyw", (relax.TensorType(*IMAGE), unknown, relax.TensorType(*WEIGHT)), strict=True
        )
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, w]):
        builder.emit_func_output(build(builder, x, y, w))
    mod = builder.get()
    rewritten = rewritten_module(mod)
    tvm.ir.assert_structural_equal(rewritten["main"].ret_ty, mod["main"].ret_ty)
    (z,) = permutations(rewritten)[2:]
    for value in values(rewritten).values():
        if getattr(getattr(value, "op", None), "name", "") in ("relax.add", "relax.concat"):
            reads = value.args[0].fields if value.op.name == "relax.concat" else value.args
            assert z in [var.name for var in reads]


def test_a_tuple_is_returned_as_the_model_has_it():
    def build(bind, x, w):
        y = bind("conv", nn.conv2d(x, w, padding=1))
        return bind("parts", o.split(y, 2, axis=1))

    rewritten = check(named_function(build))
    assert [type_shape(ty) for ty in rewritten["main"].ret_ty.fields] == [[2, 2, 5, 3]] * 2


def test_symbolic_extents():
    n, h = (tvm.tirx.Var(v, "int64") for v in "nh")
    types = [([n, 4, h, 5], "float64"), WEIGHT, ([4], "float64")]

    def build(b, x, w, v):
        y = b.emit(nn.conv2d(x, w, padding=1))
        y = b.emit(o.add(y, b.emit(o.reshape(v, (1, 4, 1, 1)))))
        y = b.emit(o.concat([y, b.emit(nn.relu(y))], axis=1))
        y = b.emit(o.reshape(b.emit(o.mean(y, [2, 3], True)), (n, 8)))
        return relax.Tuple([y, b.emit(nn.max_pool2d(x, 2))])

    mod = function(build, *types)
    rewritten = rewritten_module(mod)
    given = [np.random.default_rng(0).standard_normal(s) for s in ((3, 4, 6, 5), WEIGHT[0], 4)]
    for new, old in zip(run(rewritten, "main", *given), run(mod, "main", *given), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-12)


def test_the_work_is_linear():
    """Twice the layers, twice the bindings: nothing is converted again."""

    def network(depth):
        def build(bind, x, w):
            y = x
            for index in range(depth):
                z = bind(f"{index}/conv", nn.conv2d(y, w, padding=1))
                y = bind(f"{index}/add", o.add(bind(f"{index}/relu", nn.relu(z)), y))
            return bind("result", o.sum(y))

        return len(bindings(rewritten_module(named_function(build))))

    assert network(20) - network(10) == 10 * 3


def test_values_of_a_compiled_module():
    """As part of a module that is compiled: the shapes are those that were asked for."""
    mod = rewritten_module(named_function(layers))
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    [result] = flat(machine["main"](*map(to_tensor, arrays(mod))))
    assert result.shape == (2, 4, 5, 3)
