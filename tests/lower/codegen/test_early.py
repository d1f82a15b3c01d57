"""Kernels built while their program is lowered: used if they are what it needs, and only then."""

import threading

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from graphgrad.lower import pipeline
from graphgrad.lower.codegen import early as early_builds
from graphgrad.lower.codegen import parallel as parallel_compile
from graphgrad.lower.codegen.early import EarlyBuilds
from graphgrad.lower.codegen.parallel import compile_kernels, statements_in
from graphgrad.lower.pipeline import lower
from tests.lower.codegen.test_parallel import (
    SHAPES,
    for_cores,
    llvm_modules,
    lowered,
    program,
    results,
)
from tests.lower.programs import module, random_tensors, tensor_type

pytestmark = pytest.mark.compilation


@pytest.fixture(autouse=True)
def all_are_worth_it(monkeypatch):
    monkeypatch.setattr(early_builds, "_MIN_KERNEL_STATEMENTS", 1)
    monkeypatch.setattr(early_builds, "_TOGETHER", 1)
    monkeypatch.setattr(parallel_compile, "_MIN_PIECE_STATEMENTS", 1)


@pytest.fixture
def compiled():
    """Return the results of the program in one piece."""
    nothing = tvm.transform.Sequential([])
    return results(tvm.compile(lowered(1), for_cores(1), relax_pipeline=nothing))


def kernels_of(mod):
    return {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}


def finished(early):
    """Wait until all that was offered is built."""
    for one in early._early:
        one.built.result()


def test_kernels_are_used_that_are_what_they_were_taken_for(compiled):
    with EarlyBuilds(for_cores(2)) as early:
        mod = lower(
            module(program, *[tensor_type(*shape) for shape in SHAPES]), for_cores(2), early=early
        )
        finished(early)
        offered = len(early._early)
        assert offered >= 3
        executable = compile_kernels(mod, for_cores(2), early.taken)
    own = len(kernels_of(mod)) - offered
    assert len(llvm_modules(executable)) <= offered + own
    assert len(llvm_modules(executable)) > 3  # than without
    for ours, expected in zip(results(executable), compiled, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_functions_that_become_arithmetic_are_taken():
    def build(builder, x):
        return builder.emit(relax.op.nn.gelu(x))

    with EarlyBuilds(for_cores(2)) as early:
        mod = lower(module(build, tensor_type(64, 256)), for_cores(2), early=early)
        finished(early)
        assert len(early._early) == len(early.taken(kernels_of(mod))) == 1


def test_kernels_that_have_become_others_are_not_used(compiled):
    """As if later passes had changed all of them."""
    with EarlyBuilds(for_cores(2)) as early:
        mod = lowered(2)
        wrong = {v: f for v, f in kernels_of(lowered(2)).items() if "check" not in v.name_hint}
        for variable, kernel in wrong.items():
            early.offer(variable.name_hint, kernel.with_attr("changed", True))
        finished(early)
        assert len(early._early) == len(wrong)
        assert early.taken(kernels_of(mod)) == {}
        executable = compile_kernels(mod, for_cores(2), early.taken)
    for ours, expected in zip(results(executable), compiled, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_one_that_has_become_another_spoils_its_module(monkeypatch):
    monkeypatch.setattr(early_builds, "_TOGETHER", 10_000)
    mod = lowered(2)
    kernels = {v: f for v, f in kernels_of(mod).items() if "check" not in v.name_hint}
    with EarlyBuilds(for_cores(2)) as early:
        *before, (last, kernel) = kernels.items()
        for variable, other in before:
            early.offer(variable.name_hint, other)
        monkeypatch.setattr(early_builds, "_TOGETHER", 1)
        early.offer(last.name_hint, kernel.with_attr("changed", True))
        finished(early)
        assert [len(one.kernels) for one in early._early] == [len(kernels)]
        assert early.taken(kernels_of(mod)) == {}


def test_kernels_of_one_module_are_used_together(monkeypatch, compiled):
    largest = max(statements_in(kernel) for kernel in kernels_of(lowered(2)).values())
    monkeypatch.setattr(early_builds, "_TOGETHER", largest + 1)
    with EarlyBuilds(for_cores(2)) as early:
        mod = lower(
            module(program, *[tensor_type(*shape) for shape in SHAPES]), for_cores(2), early=early
        )
        finished(early)
        assert any(len(one.kernels) > 1 for one in early._early)
        executable = compile_kernels(mod, for_cores(2), early.taken)
    for ours, expected in zip(results(executable), compiled, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_body_that_was_changed_counts(compiled):
    with EarlyBuilds(for_cores(2)) as early:
        mod = lowered(2)
        (variable, kernel), *_ = kernels_of(mod).items()
        other = kernel.with_body(tirx.SeqStmt([kernel.body, tirx.Evaluate(0)]))
        early.offer(variable.name_hint, other)
        finished(early)
        assert early.taken(kernels_of(mod)) == {}


def test_what_nothing_has_begun_with_is_left_to_the_pieces():
    mod, busy = lowered(2), threading.Event()
    with EarlyBuilds(for_cores(2)) as early:
        early._threads.submit(busy.wait)
        for variable, kernel in kernels_of(mod).items():
            early.offer(variable.name_hint, kernel)
        assert early.taken(kernels_of(mod)) == {}
        assert early._early and all(one.built.cancelled() for one in early._early)
        busy.set()


def test_errors_of_kernels_that_are_not_used_are_not_raised(monkeypatch, compiled):
    def failing(kernels, target):
        raise ValueError

    monkeypatch.setattr(early_builds, "build", failing)
    with EarlyBuilds(for_cores(2)) as early:
        mod = lowered(2)
        for variable, kernel in kernels_of(mod).items():
            early.offer(variable.name_hint, kernel.with_attr("changed", True))
        executable = compile_kernels(mod, for_cores(2), early.taken)
    for ours, expected in zip(results(executable), compiled, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_errors_of_kernels_that_are_used_are_raised(monkeypatch):
    def failing(kernels, target):
        raise ValueError("of this kernel")

    monkeypatch.setattr(early_builds, "build", failing)
    with EarlyBuilds(for_cores(2)) as early:
        mod = lower(
            module(program, *[tensor_type(*shape) for shape in SHAPES]), for_cores(2), early=early
        )
        early._threads.submit(int).result()  # all before it have begun
        with pytest.raises(ValueError, match="of this kernel"):
            compile_kernels(mod, for_cores(2), early.taken)


@pytest.mark.parametrize(
    "spec", [{"kind": "llvm", "num-cores": 1}, {"kind": "cuda", "arch": "sm_90"}], ids=str
)
def test_nothing_is_built_without_a_core_to_spare_or_for_devices(spec):
    with EarlyBuilds(tvm.target.Target(spec)) as early:
        early.offer("doubled", None)
        assert early.taken({}) == {}


def test_nothing_is_built_where_instruments_watch():
    @tvm.ir.instrument.pass_instrument
    class Passes:
        pass

    with (
        tvm.transform.PassContext(instruments=[Passes()]),
        EarlyBuilds(for_cores(2)) as early,
    ):
        early.offer("doubled", None)
        assert early.taken({}) == {}


def test_nothing_begins_before_there_is_enough(monkeypatch):
    mod = lowered(2)
    monkeypatch.setattr(parallel_compile, "_MIN_PIECE_STATEMENTS", 10_000)
    with EarlyBuilds(for_cores(2)) as early:
        for variable, kernel in kernels_of(mod).items():
            early.offer(variable.name_hint, kernel)
        assert early._early == []
        assert early.taken(kernels_of(mod)) == {}


def test_programs_are_compiled_so(monkeypatch):
    made, taken = [], EarlyBuilds.taken

    def recorded(early, kernels):
        found = taken(early, kernels)
        made.append(len(kernels))
        return found

    monkeypatch.setattr(EarlyBuilds, "taken", recorded)
    mod = module(program, *[tensor_type(*shape) for shape in SHAPES])
    executable = pipeline.compile(mod, for_cores(2))
    assert made
    machine = relax.VirtualMachine(executable, tvm.cpu())
    assert len(machine["main"](*random_tensors(*SHAPES))) == 4
