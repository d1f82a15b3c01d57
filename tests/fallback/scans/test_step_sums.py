"""Sums of the steps of a scan that it keeps for its gradient."""

import numpy as np
import pytest
from tvm import te

from graphgrad.fallback.gradient import gradient_expressions
from graphgrad.fallback.graph import is_reduction, operations
from graphgrad.fallback.scans.step_sums import keep_step_sums
from graphgrad.fallback.walk import tensor_key
from tests.fallback import recurrences
from tests.fallback.interpreter import evaluate


def derived(program):
    """The outputs, heads and gradients of a program, and the steps of its scans."""
    heads = [
        te.placeholder(output.shape, str(output.dtype), name="head") for output in program.outputs
    ]
    steps = []
    gradients = gradient_expressions(program.outputs, program.inputs, heads, steps=steps)
    return heads, gradients, steps


def kept_by(program, gradients, steps, is_worth_keeping=lambda tensor: True):
    """The outputs and the gradients where sums are kept, and these."""
    count = len(program.outputs)
    tensors = [*program.outputs, *gradients]
    tensors, sums = keep_step_sums(tensors, program.outputs, steps, is_worth_keeping)
    return tensors[:count], tensors[count:], sums


@pytest.mark.parametrize("build", recurrences.ALL, ids=lambda build: build.__name__)
def test_nothing_else_changes(build):
    program = recurrences.program(build)
    heads, gradients, steps = derived(program)
    random = np.random.default_rng(0)
    of_heads = [random.standard_normal([int(e) for e in head.shape]) for head in heads]
    known = [*program.known, *zip(heads, of_heads, strict=True)]
    outputs, changed, _ = kept_by(program, gradients, steps)
    expected = evaluate([*program.outputs, *gradients], known)
    for value, other in zip(evaluate([*outputs, *changed], known), expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("build", "count"), [("lstm", 1), ("gru", 1), ("rnn", 0)])
def test_products_of_states_are_kept_if_they_are_read(build, count):
    program = recurrences.program(getattr(recurrences, build))
    _, gradients, steps = derived(program)
    outputs, changed, sums = kept_by(program, gradients, steps)
    assert len(sums) == count  # a tanh's derivative reads the state alone
    # The states and what is kept come of one scan.
    (scan,) = {tensor.op for tensor in [*outputs, *sums]} if sums else {outputs[0].op}
    assert isinstance(scan, te.ScanOp)

    def sums_of(tensors):
        return sum(map(is_reduction, operations(*tensors, above=outputs)))

    assert sums_of(gradients) - sums_of(changed) >= count


def test_where_one_map_reads_a_sum_its_result_is_kept():
    """The total of both products is; that of the input is not needed besides."""
    program = recurrences.program(recurrences.lstm)
    _, gradients, steps = derived(program)
    outputs, changed, sums = kept_by(program, gradients, steps)
    names = {op.name for op in operations(*changed, above=[*outputs, *sums])}
    assert names.isdisjoint({"a", "r", "gates"})


def test_what_is_not_worth_it_is_not_kept():
    program = recurrences.program(recurrences.lstm)
    _, gradients, steps = derived(program)
    outputs, changed, sums = kept_by(program, gradients, steps, lambda tensor: False)
    assert sums == []
    before = [*program.outputs, *gradients]
    assert list(map(tensor_key, [*outputs, *changed])) == list(map(tensor_key, before))
