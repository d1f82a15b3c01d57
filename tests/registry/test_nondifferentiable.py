"""Ops that are declared not differentiable, and have a float result, are locally constant."""

import numpy as np
from tvm import relax

from graphgrad.registry import all_rules
from tests.running import F64, function, run

UNARY = {"ceil", "floor", "ones_like", "round", "sign", "trunc", "zeros_like"}
"""Those with a float result; the others return integers, booleans or shapes."""


def test_unary_ops_are_locally_constant():
    declared = {rule.op for rule in all_rules() if rule.kind == "nondifferentiable"}
    names = sorted(name for name in UNARY if f"relax.{name}" in declared)
    assert set(names) == UNARY

    def build(builder, x):
        values = [builder.emit(getattr(relax.op, name)(x)) for name in names]
        return builder.emit(relax.Tuple(values))

    mod = function(build, ((4,), F64))
    x = np.array([-1.3, -0.2, 0.7, 2.4])
    for here, there in zip(run(mod, "main", x), run(mod, "main", x + 1e-3), strict=True):
        np.testing.assert_array_equal(here, there)


def test_ops_with_a_float_operand_that_they_pass_on_are_not_declared():
    declared = {rule.op for rule in all_rules() if rule.kind == "nondifferentiable"}
    assert not declared & {"relax.full", "relax.full_like", "relax.where", "relax.astype"}
