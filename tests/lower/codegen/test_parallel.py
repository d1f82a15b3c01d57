"""Kernels compiled in several pieces: the results, the errors, and the modules that stay whole."""

import threading

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from graphgrad.lower.codegen import parallel as parallel_compile
from graphgrad.lower.codegen.parallel import compile_kernels
from graphgrad.lower.pipeline import lower
from graphgrad.lower.target import target
from graphgrad.memory.argument_checks import CHECK
from tests.lower.programs import module, random_tensors, tensor_type

pytestmark = pytest.mark.compilation

op = relax.op

SHAPES = [(9, 33), (33, 17), (17,)]


def program(builder, x, weight, bias):
    """Return results of five kernels of different sizes."""
    product = builder.emit(op.matmul(x, weight))
    probabilities = builder.emit(op.nn.softmax(op.add(product, bias)))
    total = builder.emit(op.sum(probabilities, 0))
    return relax.Tuple([product, probabilities, total, builder.emit(op.sort(product, 1))])


def for_cores(count):
    return target({"kind": "llvm", "num-cores": count})


def lowered(count):
    return lower(module(program, *[tensor_type(*shape) for shape in SHAPES]), for_cores(count))


def results(executable):
    outputs = relax.VirtualMachine(executable, tvm.cpu())["main"](*random_tensors(*SHAPES))
    return [output.numpy() for output in outputs]


def llvm_modules(executable):
    """Return the LLVM modules that an executable imports, directly or not."""
    waiting, found = list(executable.mod.imports), []
    while waiting:
        current = waiting.pop()
        waiting += list(current.imports)
        found.append(current)
    assert all(current.kind == "llvm" for current in found)
    return found


@pytest.fixture
def tiny_pieces(monkeypatch):
    monkeypatch.setattr(parallel_compile, "_MIN_PIECE_STATEMENTS", 1)


@pytest.fixture
def whole():
    """Return the results of the program compiled in one piece."""
    return results(
        tvm.compile(lowered(1), for_cores(1), relax_pipeline=tvm.transform.Sequential([]))
    )


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_results_do_not_depend_on_the_number_of_pieces(count, whole):
    executable = compile_kernels(lowered(count), for_cores(count))
    kernels = [f for f in lowered(count).functions.values() if isinstance(f, tirx.PrimFunc)]
    computing = sum(CHECK not in func.attrs for func in kernels)
    assert computing == len(kernels) - 1  # the one that checks arguments is a piece by itself
    assert len(llvm_modules(executable)) == (min(count, computing) + 1 if count > 1 else 1)
    for ours, expected in zip(results(executable), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.usefixtures("tiny_pieces")
def test_each_piece_is_built_and_loaded_by_a_thread_of_its_own(monkeypatch):
    threads = []
    build, emit = tirx.build, parallel_compile._emit

    def recorded(work):
        def call(*arguments, **options):
            threads.append(threading.current_thread())
            return work(*arguments, **options)

        return call

    monkeypatch.setattr(tirx, "build", recorded(build))
    monkeypatch.setattr(parallel_compile, "_emit", recorded(emit))
    executable = compile_kernels(lowered(3), for_cores(3))
    assert len(threads) == 4  # the fourth is that of the checks
    executable.jit()
    executable.jit()
    assert len(threads) == 8
    assert threading.main_thread() not in threads


@pytest.mark.usefixtures("tiny_pieces")
def test_a_library_of_pieces_can_be_exported_before_and_after_it_is_loaded(tmp_path, whole):
    executable = compile_kernels(lowered(3), for_cores(3))
    executable.export_library(str(tmp_path / "before.so"))
    executable.jit()
    executable.export_library(str(tmp_path / "after.so"))
    for name in ("before.so", "after.so"):
        loaded = tvm.runtime.load_module(str(tmp_path / name))
        for ours, expected in zip(results(loaded), whole, strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_small_modules_stay_in_one_piece():
    assert len(llvm_modules(compile_kernels(lowered(8), for_cores(8)))) == 1


@pytest.mark.usefixtures("tiny_pieces")
def test_instruments_see_every_pass():
    seen = []

    @tvm.ir.instrument.pass_instrument
    class Passes:
        def run_before_pass(self, mod, info):
            if info.name == "tirx.MakePackedAPI":
                seen.append(len(mod.functions))

    with tvm.transform.PassContext(instruments=[Passes()]):
        executable = compile_kernels(lowered(3), for_cores(3))
    assert len(llvm_modules(executable)) == len(seen) == 1


@pytest.mark.usefixtures("tiny_pieces")
def test_the_pass_context_holds_in_all_threads(monkeypatch):
    mod = lowered(2)
    without_asserts, build = [], tirx.build

    def recorded(*arguments, **options):
        config = tvm.transform.PassContext.current().config
        without_asserts.append(bool(config.get("tirx.disable_assert")))
        return build(*arguments, **options)

    monkeypatch.setattr(tirx, "build", recorded)
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        compile_kernels(mod, for_cores(2))
    assert without_asserts == [True] * 3


@pytest.mark.usefixtures("tiny_pieces")
def test_llvm_makes_no_effort_for_checks_alone(monkeypatch):
    levels, build = {}, tirx.build

    def recorded(mod, target, pipeline):
        for variable in mod.functions:
            levels[variable.name_hint] = int(target.attrs["opt-level"])
        return build(mod, target, pipeline)

    monkeypatch.setattr(tirx, "build", recorded)
    compile_kernels(lowered(2), for_cores(2))
    assert levels.pop("main_argument_check") == 0
    assert set(levels.values()) == {int(for_cores(2).attrs["opt-level"])} != {0}


@I.ir_module
class CallsKernel:
    """A kernel that calls another one."""

    @T.prim_func(s_tir=True)
    def inner(a: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "inner"})
        for i in range(4):
            a[i] = a[i] + T.float32(1)

    @T.prim_func(s_tir=True)
    def outer(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        T.func_attr({"global_symbol": "outer"})
        for i in range(4):
            b[i] = a[i]
        CallsKernel.inner(b.data)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.call_tir(CallsKernel.outer, (x,), R.Tensor((4,), "float32"))


@pytest.mark.usefixtures("tiny_pieces")
def test_kernels_that_call_each_other_stay_together():
    mod = lower(CallsKernel, for_cores(2))
    assert len(llvm_modules(compile_kernels(mod, for_cores(2)))) == 1


@T.prim_func(s_tir=True)
def branching(x: T.Buffer((8,), "float32"), y: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        if i < 2:
            y[i, j] = x[j]


@T.prim_func(s_tir=True)
def predicated(x: T.Buffer((6,), "float32"), y: T.Buffer((6, 8), "float32")):
    for i, k, j in T.grid(2, 4, 8):
        with T.sblock("copied"):
            row, column = T.axis.spatial(6, i * 4 + k), T.axis.spatial(8, j)
            T.where(i * 4 + k < 6)
            y[row, column] = x[row]


@T.prim_func(s_tir=True)
def initialized(x: T.Buffer((4, 8), "float32"), y: T.Buffer((8,), "float32")):
    for i, j in T.grid(8, 4):
        with T.sblock("total"):
            column, row = T.axis.remap("SR", [i, j])
            with T.init():
                y[column] = T.float32(0)
            y[column] = y[column] + x[row, column]


@T.prim_func(s_tir=True)
def allocating(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    rows = T.sblock_alloc_buffer((4, 8), "float32")
    for i in range(4):
        for j in range(8):
            with T.sblock("squares"):
                row, column = T.axis.remap("SS", [i, j])
                rows[row, column] = x[row, column] * x[row, column]
        for j in range(8):
            with T.sblock("reversed"):
                row, column = T.axis.remap("SS", [i, j])
                y[row, column] = rows[row, 7 - column]


@T.prim_func(s_tir=True)
def copying(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        with T.sblock("copied"):
            row, column = T.axis.remap("SS", [i, j])
            y[row, column] = x[row, column]


def test_passes_are_left_out_where_they_change_nothing(monkeypatch):
    kernels = (branching, predicated, initialized, allocating, copying)
    mod = tvm.IRModule({str(func.attrs["global_symbol"]): func for func in kernels})
    host = for_cores(1)
    mod = tirx.transform.BindTarget(host.with_host(host))(mod)

    def lowered_kernels():
        lowering, _, _ = tirx.get_tir_pipeline(parallel_compile.PIPELINE)
        return {variable.name_hint: func for variable, func in lowering(mod).functions.items()}

    needless, context = [], parallel_compile._Lowering.context

    def recorded(lowering, *arguments):
        needless.append(lowering.needless)
        return context(lowering, *arguments)

    monkeypatch.setattr(parallel_compile._Lowering, "context", recorded)
    chosen = lowered_kernels()
    assert sorted(map(len, needless)) == [1, 1, 2]
    monkeypatch.setattr(parallel_compile, "_allocates", lambda node: True)
    monkeypatch.setattr(parallel_compile, "_branches", lambda node: True)
    for name, func in lowered_kernels().items():
        tvm.ir.assert_structural_equal(chosen[name], func)
    assert needless[-1] == ()


@T.prim_func(s_tir=True)
def remainders(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    T.func_attr({"global_symbol": "remainders"})
    for i in range(4):
        y[i] = T.fmod(x[i], x[i])


@pytest.mark.usefixtures("tiny_pieces")
def test_errors_pass_through():
    mod = lowered(2)
    mod["remainders"] = remainders  # LLVM has no such instruction, and TVM no function
    with pytest.raises(tvm.error.InternalError, match=r"unknown intrinsic .*fmod"):
        compile_kernels(mod, for_cores(2))
