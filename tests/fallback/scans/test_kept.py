"""What a scan in reverse keeps for the sums over all times."""

from tvm import te

from graphgrad.fallback.gradient import te_gradient
from graphgrad.fallback.graph import operations, outputs_of, scan_body
from tests.fallback import recurrences


def scan_in_reverse(program):
    """The scan that the gradient of a program has beside the program's own, and the gradients."""
    gradients = te_gradient(program.outputs, program.inputs)
    own = {op for op in operations(*program.outputs) if isinstance(op, te.ScanOp)}
    (scan,) = {op for op in operations(*gradients) if isinstance(op, te.ScanOp)} - own
    return scan, gradients


def maps_behind(tensor, scan):
    """How many stages compute a gradient from what a scan returns."""
    return len(operations(tensor, above=outputs_of(scan)))


def test_the_cotangent_of_all_gates_is_kept_and_read_by_every_weight():
    program = recurrences.program(recurrences.lstm)
    scan, gradients = scan_in_reverse(program)
    kept = [t for t in outputs_of(scan) if "kept" in t.op.state_placeholder[t.value_index].op.name]
    assert len(outputs_of(scan)) == 3 and len(kept) == 1
    assert [int(extent) for extent in kept[0].shape] == [5, 2, 12]
    # No gate is differentiated a second time, beside the scan.
    of_weights = dict(zip((t.op.name for t in program.inputs), gradients, strict=True))
    for name in ("w", "v"):
        assert maps_behind(of_weights[name], scan) < len(scan_body(scan))


def test_few_operations_are_repeated_instead():
    scan, _ = scan_in_reverse(recurrences.program(recurrences.rnn))
    assert len(outputs_of(scan)) == 1
