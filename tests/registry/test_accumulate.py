"""Of every rule: what is added to an accumulator is the gradient, and goes into its memory.

A sample of each op; `pytest -m slow tests/registry/test_accumulate.py` takes all of them.
"""

from collections import defaultdict
from functools import cache

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat, sample_inputs, sample_module
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.tensor import is_float
from graphgrad.registry import all_rules
from tests.labels import label

RULES = [rule for rule in all_rules() if rule.function is not None and rule.origin == "hand"]
FIRST = [(rule, rule.samples[0]) for rule in RULES]
OF_FAMILY = defaultdict(list)
for _case in FIRST:
    OF_FAMILY[_case[0].function.__module__].append(_case)


def compiled(cases):
    """Return a machine with a function of each case, `caseN`, that writes and one that adds."""
    mod = tvm.IRModule()
    for index, (rule, sample) in enumerate(cases):
        for prefix, grad_req in (("write", "write"), ("add", "add")):
            name = f"{prefix}{index}"
            mod.update(sample_module(rule.op, sample, name))
            mod = gg.vjp(mod, name, grad_req=grad_req)
            if prefix == "add":
                del mod[name]
    return relax.VirtualMachine(gg.compile(mod), tvm.cpu())


@cache
def of_family(family):
    return compiled(OF_FAMILY[family])


def check(machine, index, sample):
    generator = np.random.default_rng(index)
    inputs = [to_tensor(array) for array in sample_inputs(sample, generator)]
    outputs = [y for y in flat(machine[f"write{index}"](*inputs)) if is_float(str(y.dtype))]
    cotangents = [to_tensor(generator.uniform(-1, 1, y.shape).astype(y.dtype)) for y in outputs]
    gradients = flat(machine[f"write{index}_vjp"](*inputs, *cotangents)[1])
    old = [generator.uniform(-1, 1, g.shape).astype(g.dtype) for g in gradients]
    accumulators = list(map(to_tensor, old))
    sums = machine[f"add{index}_vjp"](*inputs, *cotangents, *accumulators)[1]
    for before, gradient, total, accumulator in zip(
        old, gradients, sums, accumulators, strict=True
    ):
        assert total.data_ptr() == accumulator.data_ptr()
        np.testing.assert_allclose(
            total.numpy(),
            before + gradient,
            rtol=1e-12,
            atol=1e-12 * (1 + np.abs(gradient).max(initial=0)),
        )


@pytest.mark.parametrize(("rule", "sample"), FIRST, ids=label)
def test_accumulated_gradient(rule, sample):
    family = rule.function.__module__
    check(of_family(family), OF_FAMILY[family].index((rule, sample)), sample)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=label)
def test_accumulated_gradients_of_all_samples(rule):
    machine = compiled([(rule, sample) for sample in rule.samples])
    for index, sample in enumerate(rule.samples):
        check(machine, index, sample)
