"""Tuples of values that are known, and values that nobody reads."""

import pytest
import tvm
from tvm import relax

from graphgrad.ir.rewrite import bindings_of
from graphgrad.lower.fusion import name_inner_tuples, replace_tuples
from tests.lower.fusion.programs import called, fused, kernels, noted

op = relax.op
LARGE = ((32, 64), "float32")


def through_a_tuple(b, x):
    pair = b.emit(relax.Tuple([b.emit(op.exp(x)), b.emit(op.log(x))]))
    return op.negative(b.emit(relax.TupleGetItem(pair, 0)))


def test_readers_read_what_is_in_a_tuple_and_the_rest_is_dead():
    mod = replace_tuples(kernels(through_a_tuple, LARGE))
    assert called(mod) == ["tir_exp", "tir_negative"]
    assert not any(isinstance(b.value, relax.Tuple) for b in bindings_of(mod["main"].body))
    assert len(called(fused(noted(mod)))) == 1


def test_fusion_alone_takes_the_tuple_for_a_reader():
    assert len(called(fused(noted(kernels(through_a_tuple, LARGE))))) > 1


def test_items_of_a_tuple_that_a_kernel_returns_stay():
    mod = kernels(lambda b, x: b.emit(b.emit(op.split(x, 2))[0]), LARGE)
    assert called(replace_tuples(mod)) == called(mod)


def out_of_inner_tuples(b, x):
    y = b.emit(op.exp(x))
    inner = b.emit(relax.Tuple([y, relax.Tuple([x, x])]))
    outer = b.emit(relax.Tuple([inner, x]))
    pair = b.emit(relax.TupleGetItem(outer, 0))
    return b.emit(relax.TupleGetItem(b.emit(relax.TupleGetItem(pair, 1)), 0))


def test_tuples_out_of_tuples_that_are_written_out():
    mod = kernels(out_of_inner_tuples, LARGE)
    with pytest.raises(tvm.error.InternalError):  # stock fusion
        fused(noted(mod))
    changed = name_inner_tuples(mod)
    items = [
        b for b in bindings_of(changed["main"].body) if isinstance(b.value, relax.TupleGetItem)
    ]
    assert not any(isinstance(b.var.ty, relax.TupleType) for b in items)
    assert called(fused(noted(replace_tuples(changed)))) == []


def test_results_of_a_function_are_alive():
    def build(b, x):
        y = b.emit(op.exp(x))
        return relax.Tuple([y, b.emit(op.log(y))])

    assert called(replace_tuples(kernels(build, LARGE))) == ["tir_exp", "tir_log"]
