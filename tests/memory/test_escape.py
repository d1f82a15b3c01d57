import pytest
import tvm
from tvm import relax

from graphgrad.ir.rewrite import bindings_of
from graphgrad.memory.effect_order import pin_effects
from graphgrad.memory.escape import allocate_escaping
from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, NOTHING, TENSOR, call
from tests.lower.op_names import op_names

op = relax.op


def planned(build, types=(TENSOR,)):
    """Return a program as the planner of memory would find it, and what is made of it before."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    with builder.function("main", params, pure=False):
        builder.emit_func_output(build(builder, *params))
    passes = [relax.transform.LegalizeOps(), relax.transform.CallTIRRewrite()]
    mod = tvm.transform.Sequential(passes)(pin_effects(builder.get()))
    changed = allocate_escaping(mod)
    return mod, changed


def allocations(mod):
    """Return for each tensor that is allocated whether the planner of memory leaves it alone."""
    kinds = {"relax.builtin.alloc_tensor": False, "relax.memory.alloc_tensor": True}
    return [kinds[name] for name in op_names(mod["main"]) if name in kinds]


def stored_bytes(mod):
    """Return the bytes of each storage that is allocated outside the plan."""
    names, bindings = op_names(mod["main"]), bindings_of(mod["main"].body)
    return [
        [int(extent) for extent in binding.value.args[0]]
        for name, binding in zip(names, bindings, strict=True)
        if name == "relax.memory.alloc_storage"
    ]


def passed(name, compute=op.sin):
    """Return a program of two tensors of its own, of which a packed function gets the first."""

    def build(b, x):
        h = b.emit(compute(x))
        b.emit(call(name, h, ty=NOTHING))
        return b.emit(op.cos(x))

    return build


def returned_by_a_packed_function(b, x):
    h = b.emit(op.sin(x))
    same = b.emit(op.call_pure_packed(aliasing.SAME, h, ty_args=TENSOR))
    return b.emit(op.cos(same))


def cast(b, x):
    h = b.match_cast(b.emit(op.sin(x)), relax.TensorType(ndim=1, dtype=DTYPE))
    return b.emit(op.cos(b.match_cast(h, TENSOR)))


def plain(b, x):
    return b.emit(op.cos(b.emit(op.sin(x))))


@pytest.mark.parametrize(
    "build, outside",
    [
        (plain, [False, False]),
        (passed(aliasing.DECLARED_SEE), [False, False]),  # declared to keep nothing
        (passed(aliasing.DECLARED_KEEP), [True, False]),
        (passed(aliasing.KEEP), [True, False]),  # nobody said what it does
        (returned_by_a_packed_function, [True, False]),
        (cast, [True, False]),
    ],
    ids=["plain", "seen", "kept", "undeclared", "returned", "cast"],
)
def test_what_stays_out_of_the_plan(build, outside):
    mod, changed = planned(build)
    assert allocations(mod) == [False] * len(outside)
    assert allocations(changed) == outside


@pytest.mark.parametrize(("compute", "size"), [(op.sin, 8), (lambda x: op.greater(x, x), 1)])
def test_storage_has_the_bytes_of_the_tensor(compute, size):
    """A bit takes a byte."""
    _, changed = planned(passed(aliasing.KEEP, compute))
    assert stored_bytes(changed) == [[4 * size]]


def test_a_function_that_retains_nothing_is_left_alone():
    mod, changed = planned(plain)
    assert changed["main"].same_as(mod["main"])
