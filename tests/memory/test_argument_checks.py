"""Which kernels go without checks of their arguments, and what is refused in their place."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.lower import pipeline
from graphgrad.lower.codegen import parallel as parallel_compile
from graphgrad.memory import argument_checks
from graphgrad.memory.argument_checks import CHECKED
from tests.lower.programs import machine, module, random_tensors, tensor_type

op = relax.op

SHAPE = (8, 32)


def program(builder, x):
    """Return a result of several kernels, a reshape and a tuple."""
    scaled = builder.emit(op.add(op.nn.softmax(x), relax.const(np.float32(2))))
    halves = builder.emit(op.split(scaled, 2, 0))
    flat = builder.emit(op.reshape(relax.TupleGetItem(halves, 0), (2, 64)))
    return op.matmul(flat, builder.emit(op.permute_dims(flat)))


def kernels(mod):
    """Return the kernels of a lowered module that check arguments, and those that do not."""
    lowered = pipeline.lower(mod, gg.target("llvm"))
    found = {v.name_hint: f for v, f in lowered.functions.items() if isinstance(f, tirx.PrimFunc)}
    without = {name for name, func in found.items() if (func.attrs or {}).get(CHECKED)}
    return set(found) - without, without


def test_kernels_of_known_tensors_check_nothing():
    checking, without = kernels(module(program, tensor_type(*SHAPE)))
    assert checking == {"main_argument_check"}
    assert len(without) >= 3


def test_results_are_the_same():
    mod, (x,) = module(program, tensor_type(*SHAPE)), random_tensors(SHAPE)
    ours = machine(mod)["main"](x).numpy()
    with tvm.transform.PassContext(disabled_pass=["graphgrad.check_arguments_once"]):
        checking, without = kernels(mod)
        theirs = machine(mod)["main"](x).numpy()
    assert len(checking) >= 3 and not without
    np.testing.assert_array_equal(ours, theirs)


def test_machine_code_has_no_checks():
    mod = module(program, tensor_type(*SHAPE))
    lowered = pipeline.lower(mod, gg.target("llvm"))
    target = gg.target("llvm")
    bound = tirx.transform.BindTarget(target.with_host(target))(
        tvm.IRModule({v: f for v, f in lowered.functions.items() if isinstance(f, tirx.PrimFunc)})
    )
    made = tirx.get_tir_pipeline(parallel_compile.PIPELINE)[0](bound)
    asserted = {v.name_hint: found for v, f in made.functions.items() if (found := asserts(f))}
    # Of the one argument: that it is a tensor, the virtual machine has found before.
    ((kernel, (statement,)),) = asserted.items()
    assert (kernel, statement.error_kind.value) == ("main_argument_check", "ValueError")


def asserts(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tirx.AssertStmt, found.append))
    return found


# --- what comes in is looked at ---


@pytest.fixture(scope="module")
def function():
    return machine(module(program, tensor_type(*SHAPE)))["main"]


@pytest.mark.parametrize(
    "array",
    [np.ones((8, 64), "float32")[:, ::2], np.ones((32, 8), "float32").T],
    ids=["every second column", "transposed"],
)
def test_arrays_with_gaps_are_refused(function, array):
    with pytest.raises(ValueError, match="'p0' of 'main' is no dense tensor"):
        function(array)


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_memory_that_kernels_cannot_use_is_refused(function, offset):
    """They would end the process: LLVM reads and writes whole registers where it is told it may."""
    memory = aligned_like(np.ones(8 * 32 + 16, "float32"))
    array = memory[offset // 4 :][: 8 * 32].reshape(SHAPE)
    with pytest.raises(ValueError, match=r"'p0' of 'main' .* a multiple of 64 bytes; pass a copy"):
        function(array)
    function(tvm.runtime.tensor(array))


def test_memory_that_kernels_of_symbolic_shapes_cannot_use_is_refused():
    mod = module(lambda b, x: op.nn.softmax(x), tensor_type(tirx.Var("n", "int64"), 32))
    softmax = machine(mod)["main"]
    memory = aligned_like(np.ones(9 * 32, "float32"))
    with pytest.raises(ValueError, match=r"'p0' of 'main' .* a multiple of 64 bytes"):
        softmax(memory[4:][:256].reshape(8, 32))
    np.testing.assert_allclose(softmax(memory[32:].reshape(8, 32)).numpy(), 1 / 32)
    assert softmax(memory[1:1].reshape(0, 32)).shape == (0, 32)  # nothing is read


@pytest.mark.parametrize("extent", [8, tirx.Var("n", "int64")], ids=["static", "symbolic"])
def test_members_of_tuples_are_looked_at(extent):
    pair = relax.TupleType([tensor_type(extent, 32), tensor_type(extent, 32)])

    def body(builder, inputs):
        inner = builder.emit(relax.TupleGetItem(inputs, 1))
        return op.nn.softmax(builder.emit(relax.TupleGetItem(inner, 0)))

    softmax = machine(module(body, relax.TupleType([tensor_type(extent, 32), pair])))["main"]
    fit, misfit = (
        aligned_like(np.ones(9 * 32, "float32"))[k:][:256].reshape(SHAPE) for k in (0, 4)
    )
    np.testing.assert_allclose(softmax((misfit, (fit, misfit))).numpy(), 1 / 32)  # not read
    with pytest.raises(ValueError, match=r"'p0\[1\]\[0\]' of 'main' .* a multiple of 64 bytes"):
        softmax((fit, (misfit, fit)))


@pytest.mark.parametrize(
    "array",
    [
        np.ones(SHAPE, "float64"),
        np.ones((8, 33), "float32"),
        np.ones(8, "float32"),
        3,
        None,
    ],
    ids=["dtype", "extent", "rank", "number", "nothing"],
)
def test_arguments_of_another_type_are_refused(function, array):
    with pytest.raises((ValueError, RuntimeError, TypeError), match="param=p0"):
        function(array)


def test_axes_of_one_element_may_have_any_stride():
    doubled = machine(module(lambda b, x: op.add(x, x), tensor_type(4, 1, 3)))["main"]
    array = tvm.runtime.tensor(np.ones((4, 3), "float32")).numpy().reshape(4, 1, 3)
    strided = np.lib.stride_tricks.as_strided(array, (4, 1, 3), (12, 400, 4))
    assert strided.strides != array.strides
    aligned = tvm.runtime.from_dlpack(
        np.lib.stride_tricks.as_strided(aligned_like(array), (4, 1, 3), (12, 400, 4))
    )
    np.testing.assert_array_equal(doubled(aligned).numpy(), 2)


def aligned_like(array):
    """Return a copy of an array in memory aligned to 64 bytes."""
    memory = np.zeros(array.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def test_empty_tensors_pass():
    doubled = machine(module(lambda b, x: op.add(x, x), tensor_type(0, 3)))["main"]
    assert doubled(tvm.runtime.tensor(np.ones((0, 3), "float32"))).shape == (0, 3)


def test_a_function_is_checked_wherever_it_is_called_from():
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_type(*SHAPE))
    with builder.function("inner", [x]):
        out = builder.emit(op.nn.relu(x))
        builder.emit_func_output(out)
    y = relax.Var("y", tensor_type(*SHAPE))
    with builder.function("main", [y]):
        out = builder.emit(relax.Call(builder.get().get_global_var("inner"), [y]))
        builder.emit_func_output(out)
    mod = builder.get()
    with pytest.raises(ValueError, match="'x' of 'inner' is no dense tensor"):
        machine(mod)["main"](np.ones((8, 64), "float32")[:, ::2])


@tvm.register_global_func("tests.of_another_shape", override=True)
def of_another_shape(_):
    return tvm.runtime.tensor(np.ones((2, 3), "float32"))


@tvm.register_global_func("tests.no_tensor", override=True)
def no_tensor(_):
    return 3


@pytest.mark.parametrize("returning", ["tests.of_another_shape", "tests.no_tensor"])
def test_what_a_packed_function_returned_is_looked_at_by_a_private_function(returning):
    """Of a packed function the program only says what it returns."""
    ty = tensor_type(*SHAPE)
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", ty), relax.Var("y", ty)
    with builder.function("inner", [x], private=True):
        builder.emit_func_output(builder.emit(op.nn.relu(x)))
    with builder.function("main", [y]):
        got = builder.emit(op.call_pure_packed(returning, y, ty_args=ty))
        inner = builder.get().get_global_var("inner")
        builder.emit_func_output(builder.emit(relax.Call(inner, [got])))
    mod = builder.get()
    assert "relu" in kernels(mod)[1]
    with pytest.raises((RuntimeError, TypeError), match="fn=inner"):
        machine(mod)["main"](*random_tensors(SHAPE))


def test_many_arguments_are_all_checked():
    count = argument_checks.TOGETHER + 2

    def total(builder, *parameters):
        result = parameters[0]
        for parameter in parameters[1:]:
            result = builder.emit(op.add(result, parameter))
        return result

    function = machine(module(total, *[tensor_type(2, 3)] * count))["main"]
    arrays = [tvm.runtime.tensor(np.ones((2, 3), "float32")) for _ in range(count)]
    np.testing.assert_array_equal(function(*arrays).numpy(), count)
    for index in (0, count - 1):
        wrong = [*arrays]
        wrong[index] = np.ones((3, 2), "float32").T
        with pytest.raises(ValueError, match=f"'p{index}' of 'main' is no dense tensor"):
            function(*wrong)


# --- kernels that keep their checks ---


@I.ir_module
class Public:
    """A kernel that anybody may call by its name, and one that asserts something."""

    @T.prim_func(s_tir=True)
    def doubled(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "doubled"})
        for i in range(4):
            b[i] = a[i] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def positive(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            assert a[i] > T.float32(0), "not positive"
            b[i] = a[i]

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.call_tir(Public.doubled, (x,), R.Tensor((4,), "float32"))
            z = R.call_tir(Public.positive, (y,), R.Tensor((4,), "float32"))
            R.output(z)
        return z


def test_public_and_asserting_kernels_keep_their_checks():
    checking, without = kernels(Public)
    assert checking >= {"doubled", "positive"}
    assert not without
    function = machine(Public)["main"]
    with pytest.raises(RuntimeError, match="not positive"):
        function(tvm.runtime.tensor(-np.ones(4, "float32")))


def test_kernels_of_symbolic_shapes_keep_their_checks():
    n = tirx.Var("n", "int64")
    checking, without = kernels(module(lambda b, x: op.nn.relu(x), tensor_type(n, 3)))
    assert checking and not without


def test_kernels_in_branches_keep_their_checks():
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        if c:  # noqa: SIM108 (TVM script has no conditional expressions)
            y = R.nn.relu(x)
        else:
            y = R.exp(x)
        return y

    checking, without = kernels(tvm.IRModule({"main": main}))
    assert "main_argument_check" in checking
    assert len(checking) == 3 and not without
    inputs = np.ones(20, "float32")
    with pytest.raises(ValueError, match=r"'x' of 'main' .* a multiple of 64 bytes"):
        machine(tvm.IRModule({"main": main}))["main"](np.array(True), aligned_like(inputs)[1:5])


def test_what_a_branch_may_choose_is_looked_at():
    @R.function
    def main(
        c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")
    ) -> R.Tensor((4,), "float32"):
        if c:  # noqa: SIM108 (TVM script has no conditional expressions)
            chosen = x
        else:
            chosen = y
        return R.exp(chosen)

    mod = tvm.IRModule({"main": main})
    checking, without = kernels(mod)
    assert checking == {"main_argument_check", "tir_exp"} and not without
    exp, array = machine(mod)["main"], aligned_like(np.ones(40, "float32"))
    fit, misfit = tvm.runtime.tensor(array[:4]), array[17:21]
    for choice in (np.array(True), np.array(False)):
        np.testing.assert_allclose(exp(choice, fit, fit).numpy(), np.e, rtol=1e-6)
        with pytest.raises(ValueError, match=r"'x' of 'main' .* a multiple of 64 bytes"):
            exp(choice, misfit, fit)
        with pytest.raises(ValueError, match=r"'y' of 'main' .* a multiple of 64 bytes"):
            exp(choice, fit, misfit)


def test_kernels_of_what_packed_functions_return_keep_their_checks():
    ty = tensor_type(*SHAPE)

    def body(builder, x):
        got = builder.emit(op.call_pure_packed("tests.whatever", x, ty_args=ty))
        return op.nn.relu(got)

    checking, without = kernels(module(body, ty))
    assert checking and not without
