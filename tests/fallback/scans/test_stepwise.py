"""The gradient of a scan of segments: which loop it is, and what the loop sums."""

import pytest
from tvm import te

from graphgrad.fallback import checkpointed
from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import STEPWISE, operations, outputs_of, scan_body, sources
from graphgrad.fallback.kinds import Kind, kind_of
from tests.fallback import recurrences
from tests.labels import label


def backwards(build, names, every=2):
    """Return the scan over segments backwards for the gradient by some inputs."""
    program = recurrences.program(build)
    wanted = [t for t in program.inputs if t.op.name in names]
    order = operations(*te_gradient(checkpointed(program.outputs, every), wanted))
    (found,) = [
        op
        for op in order
        if isinstance(op, te.ScanOp) and op.tag == STEPWISE and op.name.endswith("_ct")
    ]
    return found


def shapes(tensors):
    return [[int(extent) for extent in tensor.shape] for tensor in tensors]


@pytest.mark.parametrize(
    ("names", "states"),
    [
        ("v", [[3, 1, 2, 3], [3, 3, 3]]),  # as all: the rows of two segments, and those behind
        ("vw", [[3, 1, 2, 3], [3, 3, 4], [3, 3, 3]]),
        ("x", [[3, 1, 2, 3], [3, 2, 2, 4]]),  # the rows of a segment, not all
        (["init"], [[3, 1, 2, 3]]),
    ],
    ids=["weight", "weights", "rows", "init"],
)
def test_the_states_are_cotangents_and_sums(names, states):
    scan = backwards(recurrences.rnn, names)
    assert shapes(outputs_of(scan)) == states


@pytest.mark.parametrize("build", [recurrences.rnn, recurrences.lstm], ids=label)
def test_each_weight_gets_one_contraction_for_each_segment(build):
    """With the times of the segment among its loops, beside those that the steps are made of."""
    body = scan_body(backwards(build, "vw"))
    sums = [
        op
        for op in body
        if kind_of(op) is Kind.CONTRACTION
        and [int(axis.dom.extent) for axis in op.reduce_axis] == [2, 2]
    ]
    assert len(sums) == 2


def test_what_a_segment_computes_is_inside_the_loop():
    """Its states too: from outside come the inputs, the states kept and the head."""
    scan = backwards(recurrences.rnn, "v")
    names = {tensor.op.name for tensor in sources(scan)}
    assert {"x", "w", "v", "rnn_segments"} < names
    inside = [op.name for op in scan_body(scan) if isinstance(op, te.ScanOp)]
    assert sorted(inside) == ["rnn", "rnn_ct"]


def test_states_that_the_result_does_not_depend_on_get_no_cotangent():
    """The second of two states, which the first does not read."""

    def build(inputs):
        init, x = inputs("init", 1, 3), inputs("x", 5, 3)
        a, b = inputs.state(5, 3, name="a"), inputs.state(5, 3, name="b")
        one = te.compute((5, 3), lambda t, i: te.sin(a[t - 1, i]) * x[t, i], name="one")
        other = te.compute((5, 3), lambda t, i: b[t - 1, i] + one[t, i], name="other")
        return te.scan([init, init], [one, other], [a, b], name="pair")[:1]

    assert shapes(outputs_of(backwards(build, ["init"]))) == [[3, 1, 3]]
