"""Gradients that are added to accumulators, or not asked for."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from tests.labels import label
from tests.peers import peer
from tests.running import F64, function, run

op = relax.op
SHAPE = (3, 4)


def product():
    return function(lambda b, x, y: b.emit(op.multiply(x, y)), (SHAPE, F64), (SHAPE, F64))


def arrays(*shapes):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape) for shape in shapes]


def test_add_is_the_sum_with_the_accumulator():
    x, y, ct, old = arrays(*[SHAPE] * 4)
    mod = gg.vjp(product(), grad_req={"x0": "add"})
    names = [param.name for param in mod["main_vjp"].params]
    assert names == ["x0", "x1", "ct", "accumulator.x0"]
    _, dx, dy = run(mod, "main_vjp", x, y, ct, old)
    np.testing.assert_allclose(dx, old + ct * y)
    np.testing.assert_allclose(dy, ct * x)


@pytest.mark.parametrize("requests", [
    ("add", "add", "add"), ("add", "write", "null"), ("write", "null", "add"),
    ("null", "add", "write"),
], ids=label)  # fmt: skip
def test_batch_norm_of_a_single_image(requests):
    """apache/mxnet#18499: the input's gradient was overwritten, scale's and shift's never written.

    Each of the three may be asked for in its own way.
    """
    torch = peer("torch")

    def normalized(builder, x, scale, shift):
        statistics = [relax.const(value, F64) for value in (np.zeros(3), np.ones(3))]
        normal = op.nn.batch_norm(x, scale, shift, *statistics, axis=1, epsilon=1e-5, training=True)
        y = builder.emit(relax.TupleGetItem(builder.emit(normal), 0))
        return builder.emit(op.sum(builder.emit(op.multiply(y, y))))

    shapes = (1, 3, 2, 2), (3,), (3,)
    mod = gg.vjp(function(normalized, *[(shape, F64) for shape in shapes]), grad_req=requests)
    given = [np.arange(12.0).reshape(shapes[0]), np.array([1.0, -2, 3]), np.array([0.5, 0, -1])]
    x, scale, shift = (torch.from_numpy(array).requires_grad_() for array in given)
    y = torch.nn.functional.batch_norm(x, None, None, scale, shift, training=True)
    (y * y).sum().backward()
    asked = [index for index in range(3) if requests[index] != "null"]
    added = [index for index in asked if requests[index] == "add"]
    sums = [np.zeros(shapes[index]) for index in added]
    for _ in range(3):
        _, *gradients = run(mod, "main_vjp", *given, np.ones(()), *sums)
        sums = [gradients[asked.index(index)] for index in added]
    for index, gradient in zip(asked, gradients, strict=True):
        expected = (x, scale, shift)[index].grad.numpy() * (3 if index in added else 1)
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9)


def test_null_is_neither_computed_nor_returned():
    mod = gg.vjp(product(), grad_req=["null", "write"])
    assert len(mod["main_vjp"].ret_ty.fields[1].fields) == 1
    x, y, ct = arrays(*[SHAPE] * 3)
    np.testing.assert_allclose(run(mod, "main_vjp", x, y, ct)[1], ct * x)


def test_null_needs_no_gradient():
    def built(b, x, i):
        return b.emit(op.add(x, op.astype(i, F64)))

    mod = function(built, (SHAPE, F64), (SHAPE, F64))
    assert "main_vjp" in [v.name_hint for v in gg.vjp(mod, grad_req=["write", "null"]).functions]


def test_the_sum_is_in_the_memory_of_the_accumulator():
    mod = gg.vjp(product(), grad_req="add")
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    tensors = [to_tensor(array) for array in arrays(*[SHAPE] * 5)]
    _, sums = vm["main_vjp"](*tensors)
    assert [s.data_ptr() for s in sums] == [t.data_ptr() for t in tensors[3:]]


def test_an_accumulator_of_what_no_output_depends_on_stays_as_it_is():
    mod = function(lambda b, x, y: b.emit(op.exp(x)), (SHAPE, F64), (SHAPE, F64))
    x, y, ct, old = arrays(*[SHAPE] * 4)
    _, dy = run(gg.vjp(mod, wrt="x1", grad_req="add"), "main_vjp", x, y, ct, old)
    np.testing.assert_array_equal(dy, old)


def test_accumulators_of_a_tuple_are_a_tuple():
    pair = relax.TupleType([relax.TensorType(SHAPE, F64)] * 2)
    builder = relax.BlockBuilder()
    p = relax.Var("p", pair)
    with builder.function("main", [p]):
        with builder.dataflow():
            result = builder.emit_output(op.multiply(p[0], p[1]))
        builder.emit_func_output(result)
    mod = gg.vjp(builder.get(), wrt="p", grad_req="add")
    vm = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    x, y, ct, old_x, old_y = arrays(*[SHAPE] * 5)
    tensors = list(map(to_tensor, (x, y, ct, old_x, old_y)))
    results = flat(vm["main_vjp"](tuple(tensors[:2]), tensors[2], tuple(tensors[3:])))
    np.testing.assert_allclose(results[1], old_x + ct * y)
    np.testing.assert_allclose(results[2], old_y + ct * x)


def test_the_sum_can_be_differentiated_again():
    mod = gg.vjp(product(), wrt="x0", grad_req="add")
    twice = gg.vjp(mod, "main_vjp", wrt=["x1", "accumulator.x0"])
    x, y, ct, old, ct_y, ct_dx = arrays(*[SHAPE] * 6)
    *_, dy, d_old = run(twice, "main_vjp_vjp", x, y, ct, old, ct_y, ct_dx)
    np.testing.assert_allclose(dy, ct_y * x + ct_dx * ct)
    np.testing.assert_array_equal(d_old, ct_dx)


@pytest.mark.parametrize(
    ("grad_req", "message"),
    [
        ("sum", "grad_req='sum': expected 'write', 'add' or 'null'"),
        ({"x0": "sum"}, "grad_req='sum': expected"),
        ({"x7": "add"}, r"grad_req names \['x7'\]"),
        (["add"], "1 entries for 2 gradients"),
        ("null", 'all are "null"'),
        (None, "grad_req=None: expected a word, a sequence or a mapping"),
        ({"add"}, "grad_req={'add'}: expected a word"),
    ],
)
def test_bad_requests(grad_req, message):
    with pytest.raises(gg.ArgumentError, match=message):
        gg.vjp(product(), grad_req=grad_req)
