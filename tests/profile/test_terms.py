"""Values are recognized by what computes them, before and after fusion."""

import numpy as np
import tvm
from tvm import relax

from graphgrad.profile.terms import Terms, bindings_of, calls_kernel, variables_read

FUSION = tvm.transform.Sequential(
    [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
)


def legalized(body, count=2):
    """Return a function of 4 × 4 matrices as calls of kernels."""
    params = [relax.Var(f"x{i}", relax.TensorType([4, 4], "float32")) for i in range(count)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def computed(mod):
    """Return the variables that kernels compute, in order."""
    return [b.var for b in bindings_of(mod["main"]) if calls_kernel(b.value)]


def layers(emit, x, w):
    y = emit(relax.op.nn.relu(emit(relax.op.matmul(x, w))))
    return emit(relax.op.nn.relu(emit(relax.op.matmul(y, w))))


def fused(mod):
    """Return a module after fusion, and what its values are made of."""
    terms = Terms()
    terms.learn(mod["main"])
    grouped = tvm.transform.Sequential(FUSION.passes[:2])(mod)
    terms.learn_groups(grouped)
    made = relax.transform.FuseTIR()(grouped)
    return made, terms.recognized(made["main"])


def test_each_call_of_a_shared_kernel_is_told_apart():
    mod = legalized(layers)
    before = computed(mod)
    made, found = fused(mod)
    calls = [b for b in bindings_of(made["main"]) if calls_kernel(b.value)]
    assert len({call.value.args[0].name_hint for call in calls}) == 1
    assert [found[call.var] for call in calls] == [tuple(before[:2]), tuple(before[2:])]


def test_equal_values_are_taken_in_turn():
    def body(emit, x, w):
        return emit(relax.op.add(emit(relax.op.exp(x)), emit(relax.op.exp(x))))

    mod = legalized(body)
    _, found = fused(mod)
    assert [made for made in found.values() if made] == [tuple(computed(mod))]


def test_constants_differ_by_what_they_hold():
    def body(emit, x, w):
        one, two = (relax.const(np.full((4, 4), value, "float32")) for value in (1.0, 2.0))
        y = emit(relax.op.matmul(x, one))
        return emit(relax.op.add(emit(relax.op.matmul(x, two)), y))

    mod = legalized(body)
    _, found = fused(mod)
    made = [made for made in found.values() if made]
    assert sorted(map(len, made)) == [1, 2]
    assert {var for vars in made for var in vars} == set(computed(mod))


def test_what_is_computed_otherwise_is_not_recognized():
    terms = Terms()
    terms.learn(legalized(layers)["main"])
    other = legalized(lambda emit, x, w: emit(relax.op.nn.relu(emit(relax.op.matmul(w, x)))))
    assert set(terms.recognized(other["main"]).values()) == {()}


def test_variables_read_are_listed_once():
    mod = legalized(lambda emit, x, w: emit(relax.op.add(x, x)))
    binding, *_ = bindings_of(mod["main"])
    assert variables_read(binding.value) == [mod["main"].params[0]]
