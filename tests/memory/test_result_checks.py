"""What packed functions return in memory that kernels cannot use."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.lower.programs import machine, module, tensor_type

op = relax.op
SHAPE = (8, 32)
REFUSED = r"what 'tests.array' returned in 'main' does not start at a multiple of 64 bytes"


def array(offset, shape=SHAPE):
    """Return ones at some bytes behind a multiple of 64."""
    size = 4 * int(np.prod(shape))
    memory = np.zeros(size + 128, "uint8")
    start = -memory.ctypes.data % 64 + offset
    values = memory[start : start + size].view("float32").reshape(shape)
    values[...] = 1
    return values


@pytest.fixture
def returned():
    """What the packed function ``tests.array`` returns next."""
    values = []
    tvm_ffi.register_global_func("tests.array", lambda *_: values[-1], override=True)
    return values


def of_call(builder, x, ty):
    return builder.emit(op.call_pure_packed("tests.array", x, ty_args=ty))


def through_names(builder, x, ty):
    flat = builder.emit(op.reshape(of_call(builder, x, ty), (ty.shape[0] * 32,)))
    return builder.emit(op.reshape(builder.emit(flat), ty.shape))


def cast(builder, x, ty):
    return builder.match_cast(of_call(builder, x, relax.ObjectType()), ty)


PROGRAMS = {"itself": of_call, "reshaped": through_names, "cast": cast}


@pytest.mark.parametrize("extent", [8, tirx.Var("n", "int64")], ids=["static", "symbolic"])
@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
def test_is_refused_where_kernels_read_it(returned, build, extent):
    ty = tensor_type(extent, 32)
    softmax = machine(module(lambda b, x: op.nn.softmax(build(b, x, ty)), ty))["main"]
    x = tvm.runtime.tensor(np.ones(SHAPE, "float32"))
    for offset in (4, 16, 32):
        returned.append(array(offset))
        with pytest.raises(ValueError, match=REFUSED):
            softmax(x)
    returned.append(array(0))
    np.testing.assert_allclose(softmax(x).numpy(), 1 / 32)


def test_is_none_of_ours_where_no_kernel_reads_it(returned):
    ty = tensor_type(*SHAPE)
    main = machine(module(lambda b, x: of_call(b, of_call(b, x, ty), ty), ty))["main"]
    returned.append(array(4))
    assert (main(tvm.runtime.tensor(array(0))).numpy() == 1).all()


def test_empty_results_pass(returned):
    ty = tensor_type(tirx.Var("n", "int64"), 32)
    main = machine(module(lambda b, x: op.nn.softmax(of_call(b, x, ty)), ty))["main"]
    returned.append(array(4, (0, 32)))
    assert main(tvm.runtime.tensor(np.ones((0, 32), "float32"))).shape == (0, 32)


def test_members_of_tuples_are_looked_at(returned):
    ty = tensor_type(*SHAPE)

    def body(builder, x):
        pair = builder.emit(
            op.call_pure_packed("tests.array", x, ty_args=relax.TupleType([ty, ty]))
        )
        return op.nn.softmax(builder.emit(relax.TupleGetItem(pair, 1)))

    main, x = machine(module(body, ty))["main"], tvm.runtime.tensor(array(0))
    returned.append(tvm_ffi.convert([tvm_ffi.from_dlpack(array(k)) for k in (4, 0)]))
    np.testing.assert_allclose(main(x).numpy(), 1 / 32)  # the first is not read
    returned.append(tvm_ffi.convert([tvm_ffi.from_dlpack(array(k)) for k in (0, 4)]))
    with pytest.raises(ValueError, match=REFUSED):
        main(x)


def test_results_of_branches_and_functions_are_looked_at(returned):
    ty = tensor_type(*SHAPE)
    builder = relax.BlockBuilder()
    inner = relax.Var("inner", ty)
    with builder.function("fetch", [inner]):
        fetch = builder.emit_func_output(of_call(builder, inner, ty))
    x, condition = relax.Var("x", ty), relax.Var("condition", relax.TensorType((), "bool"))
    got = relax.Var("got", ty)
    call = relax.VarBinding(got, relax.Call(fetch, [x]))
    chosen = relax.If(
        condition, relax.SeqExpr([relax.BindingBlock([call])], got), relax.SeqExpr([], x)
    )
    with builder.function("main", [condition, x]):
        result = builder.emit(op.nn.softmax(builder.emit(builder.normalize(chosen))))
        builder.emit_func_output(result)
    main = machine(builder.get())["main"]
    returned.append(array(4))
    aligned = tvm.runtime.tensor(array(0))
    np.testing.assert_allclose(main(tvm.runtime.tensor(np.array(False)), aligned).numpy(), 1 / 32)
    with pytest.raises(ValueError, match="what 'fetch' returned in 'main' does not start"):
        main(tvm.runtime.tensor(np.array(True)), aligned)


def test_members_of_a_tuple_that_a_branch_chooses_are_looked_at(returned):
    ty = tensor_type(*SHAPE)
    pair = relax.TupleType([ty, ty])
    builder = relax.BlockBuilder()
    x, condition = relax.Var("x", ty), relax.Var("condition", relax.TensorType((), "bool"))
    with builder.function("main", [condition, x]):
        got = builder.emit(op.call_pure_packed("tests.array", x, ty_args=pair))
        own = builder.emit(relax.Tuple([x, x]))
        branches = (relax.SeqExpr([], got), relax.SeqExpr([], own))
        chosen = builder.emit(builder.normalize(relax.If(condition, *branches)))
        member = builder.emit(relax.TupleGetItem(chosen, 1))
        builder.emit_func_output(builder.emit(op.nn.softmax(member)))
    main, aligned = machine(builder.get())["main"], tvm.runtime.tensor(array(0))
    returned.append(tvm_ffi.convert([tvm_ffi.from_dlpack(array(k)) for k in (0, 4)]))
    np.testing.assert_allclose(main(tvm.runtime.tensor(np.array(False)), aligned).numpy(), 1 / 32)
    with pytest.raises(ValueError, match=REFUSED):
        main(tvm.runtime.tensor(np.array(True)), aligned)
