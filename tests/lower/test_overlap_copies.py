"""On request, what would be overwritten is copied where another argument shares its memory."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.kernel_calls import RUNS_ON_HOST
from graphgrad.lower.pipeline import lower
from tests.memory.test_overlap import accumulating, accumulating_tuple, reading_last, tensors
from tests.running import F64, function

op = relax.op


def machine(mod):
    return relax.VirtualMachine(gg.compile(mod, overlap="copy"), tvm.cpu())["main_vjp"]


def test_a_shared_accumulator_is_copied_and_keeps_its_elements():
    f = machine(accumulating(3, 4))
    x, y, ct = tensors(*[(3, 4)] * 3)
    before = x.numpy().copy()
    result = f(x, y, ct, x)[1][0]
    np.testing.assert_allclose(result.numpy(), before + before**2)
    assert not gg.shares_memory(result, x)
    np.testing.assert_array_equal(x.numpy(), before)


def test_an_accumulator_of_its_own_is_overwritten():
    f = machine(accumulating(3, 4))
    x, y, ct, old = tensors(*[(3, 4)] * 4)
    result = f(x, y, ct, old)[1][0]
    assert result.data_ptr() == old.data_ptr()


def test_memory_that_is_shared_in_part():
    f = machine(accumulating(8, 8))
    [whole] = tensors((3, 8, 8))
    y, ct = tensors((8, 8), (8, 8))
    x = whole._create_view((8, 8), F64)
    before = whole.numpy().copy()
    shifted = whole._create_view((8, 8), F64, relative_byte_offset=64)
    accumulator = tvm.runtime.from_dlpack(np.from_dlpack(shifted))
    expected = accumulator.numpy() + y.numpy() * ct.numpy()
    np.testing.assert_allclose(f(x, y, ct, accumulator)[1][0].numpy(), expected)
    np.testing.assert_array_equal(whole.numpy(), before)


def test_two_accumulators_that_are_one():
    """One is copied, and both sums are right."""

    def product(builder, x, y):
        return builder.emit(op.multiply(x, y))

    f = machine(gg.vjp(function(product, ((6,), F64), ((6,), F64)), grad_req="add"))
    x, y, ct, old = tensors(*[(6,)] * 4)
    y = to_tensor(y.numpy() + 1)
    before = old.numpy().copy()
    of_x, of_y = f(x, y, ct, old, old)[1]
    np.testing.assert_allclose(of_x.numpy(), before + y.numpy() * ct.numpy())
    np.testing.assert_allclose(of_y.numpy(), before + x.numpy() * ct.numpy())
    assert not gg.shares_memory(of_x, of_y)


def test_symbolic_and_empty_tensors():
    n = tvm.tirx.Var("n", "int64")
    f = machine(accumulating(n, 4))
    x, y, ct = tensors(*[(5, 4)] * 3)
    expected = ct.numpy() * (1 + y.numpy())
    np.testing.assert_allclose(f(x, y, ct, ct)[1][0].numpy(), expected)
    [nothing] = tensors((0, 4))
    assert f(nothing, nothing, nothing, nothing)[1][0].numpy().shape == (0, 4)


def test_members_of_a_tuple():
    f = machine(accumulating_tuple())
    x, a, ct, old = tensors(*[(3,)] * 4)
    before = old.numpy().copy()
    result = f(x, (a, old), ct, old)[1][0]
    np.testing.assert_allclose(result.numpy(), before + before * ct.numpy())
    np.testing.assert_array_equal(old.numpy(), before)


def donating(donated, build, *types):
    """Return a function that overwrites parameters: of `donated`, pairs (index, result)."""
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params, attrs={"graphgrad.donated": donated}):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("overlap", ["refuse", "copy"])
def test_extents_that_are_expressions(overlap):
    """Of `2 * n` a kernel cannot learn n; here a shape alone says what n is."""
    n = tvm.tirx.Var("n", "int64")
    twice = relax.TensorType([2 * n], F64)
    mod = donating([[0, 0]], lambda b, x, y, _: b.emit(op.add(x, y)), twice, twice,
                   relax.ShapeType([n]))  # fmt: skip
    f = relax.VirtualMachine(gg.compile(mod, overlap=overlap), tvm.cpu())["main"]
    x, y = tensors((6,), (6,))
    expected, shape = x.numpy() + y.numpy(), tvm.runtime.ShapeTuple([3])
    if overlap == "copy":
        np.testing.assert_array_equal(f(x, x, shape).numpy(), 2 * x.numpy())
    else:
        with pytest.raises(gg.AliasError):
            f(x, x, shape)
    np.testing.assert_array_equal(f(x, y, shape).numpy(), expected)


def test_a_tuple_among_what_is_overwritten():
    """Nothing names its members, so they stay."""
    three = relax.TensorType((3,), F64)
    mod = donating([[0, 0]], lambda b, p, y: b.emit(op.add(b.emit(p[0]), y)),
                   relax.TupleType([three, three]), three)  # fmt: skip
    f = relax.VirtualMachine(gg.compile(mod, overlap="copy"), tvm.cpu())["main"]
    [x] = tensors((3,))
    np.testing.assert_array_equal(f((x, x), x).numpy(), [2, 4, 6])
    np.testing.assert_array_equal(x.numpy(), [1, 2, 3])


def test_a_function_that_others_call_overwrites_nothing():
    """The caller goes on with what it has passed."""
    mod = accumulating(4)
    x, y, ct, old = params = [relax.Var(name, relax.TensorType((4,), F64)) for name in "xyca"]
    builder = relax.BlockBuilder(mod)
    with builder.function("outer", params):
        own = builder.emit(op.add(old, old))
        results = [
            builder.emit(relax.Call(mod.get_global_var("main_vjp"), [x, y, ct, accumulator]))
            for accumulator in (old, own)
        ]
        builder.emit_func_output(relax.Tuple([*results, own]))
    f = relax.VirtualMachine(gg.compile(builder.get(), overlap="copy"), tvm.cpu())["outer"]
    arrays = [tensor.numpy() * scale for scale, tensor in enumerate(tensors(*[(4,)] * 4), 1)]
    arguments = list(map(to_tensor, arrays))
    x, y, ct, old = arrays
    expected = [x * y, old + ct * y, x * y, 2 * old + ct * y, 2 * old]
    for result, value in zip(flat(f(*arguments)), expected, strict=True):
        np.testing.assert_allclose(result, value)
    for tensor, array in zip(arguments, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_tensors_of_unknown_shape():
    mod, array = reading_last(relax.TensorType(ndim=1, dtype=F64)), np.arange(1.0, 4)
    f = relax.VirtualMachine(gg.compile(mod, overlap="copy"), tvm.cpu())["main"]
    x = to_tensor(array)
    for result, expected in zip(flat(f(x, x)), [array + 1, array], strict=True):
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(x.numpy(), array)
    old = to_tensor(array)
    assert f(old, x)[0].data_ptr() == old.data_ptr()


def test_as_a_pipeline_of_tvm():
    lowering = gg.pipeline(gg.target("llvm"), overlap="copy")
    executable = tvm.compile(accumulating(3, 4), gg.target("llvm"), relax_pipeline=lowering)
    f = relax.VirtualMachine(executable, tvm.cpu())["main_vjp"]
    x, y, ct = tensors(*[(3, 4)] * 3)
    expected = ct.numpy() * (1 + y.numpy())
    np.testing.assert_allclose(f(x, y, ct, ct)[1][0].numpy(), expected)


@pytest.mark.parametrize(
    ("pairs", "says"), [([[0]], "must be a list"), ([[5, 0]], "names parameter 5 of 2")]
)
def test_malformed_requests_are_refused(pairs, says):
    two = relax.TensorType((2,), F64)
    mod = donating(pairs, lambda b, x, y: b.emit(op.add(x, y)), two, two)
    with pytest.raises(gg.ArgumentError, match=rf"graphgrad\.donated of main {says}"):
        gg.compile(mod, overlap="copy")


def test_another_word():
    with pytest.raises(gg.ArgumentError, match="overlap is 'ignore'; it is 'refuse' or 'copy'"):
        gg.compile(accumulating(3, 4), overlap="ignore")
    with pytest.raises(gg.ArgumentError, match="overlap"):
        gg.pipeline(gg.target("llvm"), overlap=True)


@pytest.mark.parametrize("overlap", ["refuse", "copy"])
def test_for_cuda(overlap):
    """The comparison runs on the host, the copy on the device."""
    device = gg.target({"kind": "cuda", "arch": "sm_90"})
    kernels = lower(accumulating(64, 64), device, overlap=overlap).functions
    targets = {v.name_hint: f.attrs.get("target") for v, f in kernels.items() if f.attrs}
    comparing = [name for name in targets if "overlap" in name or "is_shared" in name]
    assert comparing
    # They take tensors on the device, so their target is that of the others.
    marked = {v.name_hint for v, f in kernels.items() if f.attrs and RUNS_ON_HOST in f.attrs}
    assert marked == set(comparing)
    assert all(str(targets[name].host.kind.name) == "llvm" for name in comparing)
    copies = [name for name in targets if name.startswith("copy_of_argument")]
    assert bool(copies) == (overlap == "copy")
    assert not any(targets[name] for name in copies)
