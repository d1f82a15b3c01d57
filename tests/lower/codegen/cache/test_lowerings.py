"""Ops that somebody else lowers are told, and asking for that changes nothing."""

import pytest
import tvm
import tvm_ffi

from graphgrad.lower.codegen.cache import lowerings
from tests.forks import forks

RELU = ("relax.nn.relu", "FLegalize")


def test_all_are_lowered_as_at_first():
    assert lowerings._at_first
    assert not lowerings.changed_lowerings()


def test_kernels_and_relax_are_covered():
    covered = {attribute for _, attribute in lowerings._at_first}
    assert {"FLegalize", "default.FLowerIntrinsic", "llvm.FLowerIntrinsic"} <= covered
    # Of another processor: TVM asks for these besides, where they are registered.
    assert {"llvm.aarch64.FLegalize", "llvm.aarch64.FLowerIntrinsic"} <= set(lowerings._LOWERINGS)


def test_another_function(monkeypatch):
    other = tvm_ffi.convert(lambda builder, call: call)
    monkeypatch.setitem(lowerings._at_first, RELU, other)
    assert lowerings.changed_lowerings()


def test_one_op_at_a_time(monkeypatch):
    relu, call_tir = tvm.ir.Op.get("relax.nn.relu"), tvm.ir.Op.get("relax.call_tir")
    assert lowerings.is_lowered_by_tvm_or_graphgrad(relu)
    assert not lowerings.is_lowered_by_tvm_or_graphgrad(call_tir)
    monkeypatch.setitem(lowerings._at_first, RELU, tvm_ffi.convert(lambda builder, call: call))
    assert not lowerings.is_lowered_by_tvm_or_graphgrad(relu)


def test_one_more(monkeypatch):
    monkeypatch.delitem(lowerings._at_first, RELU)
    assert lowerings.changed_lowerings()


def test_one_less(monkeypatch):
    """Where an op has lost the function of a target, that of all targets takes its place."""
    missing = ("relax.nn.relu", "llvm.FLowerIntrinsic")
    monkeypatch.setitem(lowerings._at_first, missing, object())
    assert lowerings.changed_lowerings()


def test_asking_changes_nothing():
    """Neither functions nor their levels, nor what others may register."""
    of_all = lowerings._lowerings()  # other tests register ops of their own, at other levels
    before = {key: of_all[key] for key in lowerings._at_first}
    lowerings._is_stock.cache_clear()
    assert all(lowerings._is_stock(*key) for key in before)
    lowerings._is_stock.cache_clear()
    assert all(lowerings._is_stock(*key) for key in before)
    after = lowerings._lowerings()
    assert of_all.keys() == after.keys()
    assert all(function.same_as(after[key]) for key, function in before.items())


def test_an_op_without_the_attribute_has_none_afterwards():
    assert tvm.ir.Op.get("relax.call_tir").get_attr("FLegalize") is None
    assert not lowerings._is_stock("relax.call_tir", "FLegalize")
    assert tvm.ir.Op.get("relax.call_tir").get_attr("FLegalize") is None


OVERRIDDEN = """
import tvm
import tvm.relax

def mine(builder, call):
    return call

tvm.ir.register_op_attr("{op}", "FLegalize", mine, level={level})
before = tvm.ir.Op.get("{op}").get_attr("FLegalize")
from graphgrad.lower.codegen.cache import lowerings
from tests.forks import forks
print(lowerings.changed_lowerings(), lowerings.changed_lowerings())
assert tvm.ir.Op.get("{op}").get_attr("FLegalize").same_as(before)
# The level is what it was: one above it takes the place of the function, one below does not.
tvm.ir.register_op_attr("{op}", "FLegalize", lambda builder, call: None, level={level} - 1)
assert tvm.ir.Op.get("{op}").get_attr("FLegalize").same_as(before)
tvm.ir.register_op_attr("{op}", "FLegalize", lambda builder, call: None, level={level} + 1)
assert not tvm.ir.Op.get("{op}").get_attr("FLegalize").same_as(before)
"""


@pytest.fixture(scope="module")
def tvm_alone():
    """Runs programs in processes that have imported TVM, and not graphgrad."""
    with forks("tvm.relax") as running:
        yield running


@pytest.mark.parametrize("op, level", [("relax.tan", 11), ("relax.call_tir", 5)])
def test_what_was_registered_before_graphgrad_was_imported(op, level, tvm_alone):
    """Above TVM's function, or at a low level where TVM has none."""
    done = tvm_alone.run(OVERRIDDEN.format(op=op, level=level))
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.returncode == 0, done.stderr
