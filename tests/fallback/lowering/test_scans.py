"""Recurrences compiled: the values, and the form of the loop."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx

from graphgrad.fallback import create_prim_func
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate
from tests.fallback.judge import with_heads
from tests.labels import label
from tests.running import compile_library


def function(program):
    """Return a function of a program's placeholders and outputs."""
    return create_prim_func([*(tensor for tensor, _ in program.known), *program.outputs])


def run(func, program):
    """Return what a compiled function writes into outputs of NaN."""
    results = [
        tvm.runtime.tensor(np.full([int(e) for e in t.shape], np.nan, str(t.dtype)))
        for t in program.outputs
    ]
    compiled = compile_library(func)
    compiled(*(tvm.runtime.tensor(array) for _, array in program.known), *results)
    return [result.numpy() for result in results]


@pytest.mark.parametrize("build", recurrences.ALL, ids=label)
def test_gradients_compile_to_what_they_mean(build):
    _, program = with_heads(recurrences.program(build), np.random.default_rng(1))
    expected = evaluate(program.outputs, program.known)
    for given, array in zip(run(function(program), program), expected, strict=True):
        np.testing.assert_allclose(given, array, atol=1e-12)


@pytest.mark.parametrize(
    "build", [recurrences.integer_state, recurrences.scan_in_a_step], ids=label
)
def test_second_order_compiles_to_what_it_means(build):
    generator = np.random.default_rng(1)
    _, first = with_heads(recurrences.program(build), generator)
    _, program = with_heads(first, generator)
    expected = evaluate(program.outputs, program.known)
    for given, array in zip(run(function(program), program), expected, strict=True):
        np.testing.assert_allclose(given, array, atol=1e-12)


def test_states_of_integers_and_floats_side_by_side():
    inputs = recurrences.Inputs(2)
    recurrences.integer_state(inputs)
    count, state = te.placeholder((4,), "int32"), inputs.state(4)
    start = te.compute((1,), lambda _: tirx.const(3, "int32"))
    half = te.compute((1,), lambda _: tirx.const(0.5, "float64"))
    counted = te.compute((4,), lambda t: count[t - 1] * 2 + 1)
    summed = te.compute((4,), lambda t: state[t - 1] + counted[t].astype("float64"))
    outputs = te.scan([start, half], [counted, summed], [count, state])
    compiled = compile_library(create_prim_func(outputs))
    results = [tvm.runtime.tensor(np.zeros(4, d)) for d in ("int32", "float64")]
    compiled(*results)
    np.testing.assert_array_equal(results[0].numpy(), [3, 7, 15, 31])
    np.testing.assert_array_equal(results[1].numpy(), [0.5, 7.5, 22.5, 53.5])


def blocks_of_a_step(func, name):
    """Return the block of a step and those inside it, by name."""
    found = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append))
    (step,) = (block for block in found if block.name_hint == name)
    inside = []
    tvm_ffi.structural_walk(step.body, (s_tir.SBlock, inside.append))
    return step, {block.name_hint for block in inside}


def test_a_step_computes_only_what_depends_on_the_step_before():
    program = recurrences.program(recurrences.rnn)
    func = function(program)
    step, inside = blocks_of_a_step(func, "rnn_step")
    assert inside == {"rnn_r", "rnn_rnn_update"}  # not W x, which all times have at once
    assert [[int(e) for e in b.ty.shape] for b in step.alloc_buffers] == [[2, 3]]


def test_a_single_step_computes_its_own_row_alone():
    step, _ = blocks_of_a_step(function(recurrences.program(recurrences.one_step)), "rnn_step")
    assert [[int(e) for e in b.ty.shape] for b in step.alloc_buffers] == [[2, 3]]


def test_a_gather_within_a_row_reads_what_is_computed_once():
    func = function(recurrences.program(recurrences.gathered_from_a_stage))
    _, inside = blocks_of_a_step(func, "chosen_step")
    assert inside == {"chosen_mixed", "chosen_update"}


def test_the_reverse_loop_is_what_one_would_write_by_hand():
    """One product by the derivative of tanh, one by Vᵀ, one sum with the head; no copies."""
    _, program = with_heads(recurrences.program(recurrences.rnn), np.random.default_rng(1))
    step, inside = blocks_of_a_step(function(program), "rnn_ct_step")
    assert len(inside) == 3
    assert [[int(e) for e in b.ty.shape] for b in step.alloc_buffers] == [[2, 3], [2, 3]]


def test_a_schedule_transforms_the_stages_of_a_step():
    program = recurrences.program(lambda inputs: recurrences.rnn(inputs, width=16))
    schedule = s_tir.Schedule(function(program))
    batch, hidden, summed = schedule.get_loops(schedule.get_sblock("rnn_r"))
    schedule.reorder(batch, summed, hidden)
    schedule.vectorize(hidden)
    (given,) = run(schedule.mod["main"], program)
    (expected,) = evaluate(program.outputs, program.known)
    np.testing.assert_allclose(given, expected, atol=1e-12)
