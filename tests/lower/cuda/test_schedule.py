"""Which rule takes a kernel, what is said when none does, and what must not be hidden."""

import pytest
import tvm
import tvm_ffi
from tvm import te, topi
from tvm.s_tir import ScheduleError
from tvm.script import tirx as T

from graphgrad.errors import LoweringError
from graphgrad.lower.cuda import schedule
from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.rules import Rule
from graphgrad.lower.cuda.stages import one_thread_per_element
from tests.lower.cuda.running import GPU
from tests.lower.kernel_programs import tensor

TAKES = Rule("takes", one_thread_per_element)


def fails_with(error):
    def apply(*_):
        raise error

    return Rule("fails", apply)


def add_function(extent=64):
    x = tensor(extent)
    return te.create_prim_func([x, topi.add(x, x)])


def matmul_function():
    a, b = tensor(8, 64), tensor(10, 64, name="b")
    return te.create_prim_func([a, b, topi.nn.dense(a, b)])


def names(mod, **options):
    kernels = []
    schedule.schedule_threads(tvm.IRModule(mod), GPU, kernels, **options)
    return {kernel.name: kernel.rule for kernel in kernels}


def test_contractions_are_tiled_and_other_stages_have_a_thread_per_element():
    taken = names({"product": matmul_function(), "sum": add_function()})
    assert taken == {"product": "tiles", "sum": "elements"}


@pytest.mark.parametrize("error", [ScheduleError("no"), ValueError("no"), RuntimeError("no")])
def test_a_rule_that_fails_is_recorded_and_the_next_one_tried(error):
    _, kernel = schedule.schedule_function("k", add_function(), GPU, [fails_with(error), TAKES])
    assert kernel.rule == "takes"
    assert [rule for rule, _ in kernel.refused] == ["fails"]


@pytest.mark.parametrize("error", [AttributeError, ImportError, KeyError, NameError, TypeError])
def test_a_mistake_in_a_rule_is_not_hidden(error):
    with pytest.raises(error):
        schedule.schedule_function("k", add_function(), GPU, [fails_with(error("no")), TAKES])


def test_a_schedule_that_leaves_work_to_the_host_is_refused():
    unscheduled = Rule("unscheduled", lambda func, _: func)
    _, kernel = schedule.schedule_function("k", add_function(), GPU, [unscheduled, TAKES])
    assert kernel.rule == "takes"
    assert "host" in kernel.refused[0][1]


def test_kernels_that_no_rule_takes_are_all_named_and_three_explained():
    mod = {f"kernel{i}": add_function(10 + i) for i in range(5)}
    with pytest.raises(LoweringError, match=r"5 kernel\(s\)") as caught:
        names(mod, rules=[fails_with(ValueError("because\nof a long story"))])
    text = str(caught.value)
    assert all(name in text for name in mod)
    assert text.count("ValueError: because") == 3
    assert "long story" not in text
    assert "llvm" in text


def test_identical_functions_are_scheduled_once(monkeypatch):
    seen = []
    original = schedule.schedule_function
    monkeypatch.setattr(
        schedule, "schedule_function", lambda *given: seen.append(given) or original(*given)
    )
    assert len(names({"a": add_function(), "b": add_function()})) == 2
    assert len(seen) == 1


def test_kernels_that_are_alike_write_their_own_parameters():
    mod = tvm.IRModule({name: add_function() for name in ("a", "b")})
    for func in schedule.schedule_threads(mod, GPU).functions.values():
        stores = []
        tvm_ffi.structural_walk(func.body, (tvm.tirx.BufferStore, stores.append))
        assert stores and all(store.buffer.same_as(func.params[-1]) for store in stores)


def test_the_module_given_is_not_changed():
    mod = tvm.IRModule({"a": add_function()})
    before = mod.script()
    assert schedule.schedule_threads(mod, GPU).script() != before
    assert mod.script() == before


def test_schedules_are_the_same_every_time():
    first, second = (schedule.schedule_function("a", matmul_function(), GPU)[0] for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)


def kernel(threads, blocks, shared, tag="blockIdx.x"):
    """Return a kernel of so many threads and blocks, and doubles in shared memory."""

    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((T.int64(4),), "float32")):
        for block in T.thread_binding(blocks, thread=tag):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                held = T.sblock_alloc_buffer((shared,), "float64", scope="shared")
                with T.sblock("fill"):
                    held[thread % shared] = T.float64(1)
                with T.sblock("store"):
                    if thread == 0 and block == 0:
                        x[0] = T.Cast("float32", held[shared - 1])

    return func


@pytest.mark.parametrize(
    ("asked", "too_much"),
    [
        ((1024, 1, 6144), ""),
        ((1025, 1, 1), "1025 threads"),
        ((1, 1, 6145), "49160 bytes"),
        ((1, 65536, 1, "blockIdx.y"), "65536 blocks along blockIdx.y"),
        ((1, 65536, 1), ""),
    ],
)
def test_limits_of_a_gpu(asked, too_much):
    if not too_much:
        check(kernel(*asked), GPU)
    else:
        with pytest.raises(LoweringError, match=too_much):
            check(kernel(*asked), GPU)
