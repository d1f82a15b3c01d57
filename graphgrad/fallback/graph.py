"""Graphs of stages: in which order they depend on one another, and how to rewrite them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from ..errors import ArgumentError
from ..tvm_fixes.hooks import compute_stage, extern_stage, scan_stage
from .kinds import copied
from .walk import (
    Expr,
    children,
    identity,
    is_load,
    items,
    loaded,
    loaded_tensor,
    postorder,
    tensor_key,
    transformed,
)

Key = tuple[int, int]
"""What identifies a tensor (see `walk.tensor_key`)."""

Operation = Any
"""A stage: what computes one tensor or several."""

DETECT_ACCESS = {"tirx.script_parsing_detect_access": tirx.IntImm("int32", 3)}
"""Asks TVM to find out what a block of statements reads and writes: schedules go by that."""

STEPWISE = "graphgrad.stepwise"
"""Tag of a scan that keeps nothing of a step but the states.

At each step it computes all stages between its `inputs` and its updates, also those that do not
depend on the states; what they read of the steps' results is the row before alone. Its gradient
does the same (see `stepwise`).
"""

RECOMPUTED = "graphgrad.recomputed"
"""Attribute of a scan: tensors of which it computes copies of its own."""

STOP_GRADIENT = "graphgrad.stop_gradient"
"""Attribute of a stage that passes no cotangent on, because no result depends on its value.

Such is the maximum that a softmax subtracts in numerator and denominator, and the element by which
a variance is shifted: they keep rounding errors small, and their derivatives cancel.
"""


def outputs_of(op: Operation) -> list[te.Tensor]:
    """The tensors that a stage computes."""
    return [op.output(number) for number in range(op.num_outputs)]


def listed(tensors: te.Tensor | Sequence[te.Tensor]) -> list[te.Tensor]:
    """A tensor or several as a list; functions of `te` return either."""
    return [tensors] if isinstance(tensors, te.Tensor) else list(tensors)


def is_reduction(op: Operation) -> bool:
    """Whether a stage reduces: a sum, a maximum, or any other."""
    return isinstance(op, te.ComputeOp) and isinstance(op.body[0], tirx.Reduce)


def operations(*tensors: te.Tensor, above: Sequence[te.Tensor] = ()) -> list[Operation]:
    """The stages that some tensors depend on, each once, after those it reads.

    The inside of a scan is not among them: a scan is one stage (see `sources`).

    Parameters
    ----------
    *tensors : Tensor
    above : sequence of Tensor
        Given tensors: their stages are left out, and what is needed for them alone.
    """
    left_out = {tensor_key(tensor) for tensor in above}

    def producers(op: Operation) -> list[Operation]:
        return [tensor.op for tensor in sources(op) if tensor_key(tensor) not in left_out]

    return postorder(*(t.op for t in tensors if tensor_key(t) not in left_out), parts=producers)


def sources(op: Operation) -> list[te.Tensor]:
    """The tensors that a stage reads, each once.

    Those of a scan are its initial states and what its update reads from outside: tensors that do
    not depend on its states.
    """
    if not isinstance(op, te.ScanOp):
        return _deduplicate(items(op.input_tensors))
    body = scan_body(op)
    # An update that depends on no state is computed outside, and is read as it is.
    tensors = [*op.update, *(tensor for stage in body for tensor in sources(stage))]
    inside = {
        tensor_key(tensor)
        for stage in [*body, *(state.op for state in op.state_placeholder)]
        for tensor in outputs_of(stage)
    }
    return _deduplicate([*op.init, *(t for t in tensors if tensor_key(t) not in inside)])


def scan_body(op: Any, updates: Sequence[te.Tensor] | None = None) -> list[Operation]:
    """The stages of a scan's update that are computed anew at every step, in order.

    They are those that depend on its states; of a `STEPWISE` scan, all that its inputs are not
    computed by. A scan among them is one stage: the stages of its own update are left out.

    Parameters
    ----------
    op : ScanOp
    updates : sequence of Tensor, optional
        What it is updated by, if not by its own.
    """
    stepwise = op.tag == STEPWISE
    outside = {identity(tensor.op) for tensor in op.inputs} if stepwise else set()
    order = postorder(
        *(update.op for update in (op.update if updates is None else updates)),
        parts=lambda stage: [t.op for t in stage.input_tensors if identity(t.op) not in outside],
    )
    scans = [op, *(stage for stage in order if isinstance(stage, te.ScanOp))]
    states = {identity(state.op) for scan in scans for state in scan.state_placeholder}
    states_of: dict[int, set[int]] = {}  # that a stage depends on; outside its scan, none
    for stage in order:
        states_of[identity(stage)] = {identity(stage)} & states
        for tensor in stage.input_tensors:
            states_of[identity(stage)] |= states_of.get(identity(tensor.op), set())
        if isinstance(stage, te.ScanOp):
            states_of[identity(stage)] -= {identity(state.op) for state in stage.state_placeholder}
    own_states = {identity(state.op) for state in op.state_placeholder}
    # What depends on the states of a scan inside is part of the update of that one.
    return [
        stage
        for stage in order
        if (stepwise or states_of[identity(stage)])
        and states_of[identity(stage)] <= own_states
        and not isinstance(stage, te.PlaceholderOp)
    ]


def stop_gradient(tensor: te.Tensor) -> te.Tensor:
    """A tensor of a compute stage that is marked with `STOP_GRADIENT`."""
    op = tensor.op
    attrs = {**dict(op.attrs.items()), STOP_GRADIENT: 1}
    return compute_stage(op.name, op.tag, attrs, op.axis, op.body).output(tensor.value_index)


def stops_gradient(op: Operation) -> bool:
    """Whether a stage is marked as one that passes no cotangent on (see `STOP_GRADIENT`)."""
    return isinstance(op, te.ComputeOp) and bool(op.attrs) and STOP_GRADIENT in op.attrs


def active_stages(
    order: Sequence[Operation], wanted: Container[Key], is_float: Callable[[str], bool]
) -> tuple[set[Key], set[int]]:
    """The tensors that pass cotangents on to wanted ones, and the identities of their stages.

    Parameters
    ----------
    order : sequence of Operation
        Each behind those that it reads.
    wanted : container of Key
    is_float : callable
        Of a dtype: an integer passes no cotangent on, whatever it is computed from.
    """
    active: set[Key] = set()
    stages: set[int] = set()
    for op in order:
        if stops_gradient(op):
            continue
        keys = map(tensor_key, sources(op))
        if any(key in active or key in wanted for key in keys):
            stages.add(identity(op))
            active |= {tensor_key(t) for t in outputs_of(op) if is_float(str(t.dtype))}
    return active, stages


def rewritten(
    tensors: Sequence[te.Tensor],
    change: Callable[[Operation], Sequence[te.Tensor] | None],
    replacements: Mapping[Key, te.Tensor] | None = None,
) -> list[te.Tensor]:
    """Tensors with the stages that they depend on changed, those read first.

    Parameters
    ----------
    tensors : sequence of Tensor
    change : callable
        Given a stage that reads already changed tensors, returns what its outputs become; None
        leaves it as it is. Stages inside a scan are changed too.
    replacements : mapping, optional
        What some tensors become; stages above them are not visited for their sake.
    """
    table: dict[Key, te.Tensor] = dict(replacements or {})
    for op in all_operations(tensors, table):
        rewired = replace_inputs(op, table)
        results = change(rewired)
        results = outputs_of(rewired) if results is None else results
        for tensor, result in zip(outputs_of(op), results, strict=True):
            table[tensor_key(tensor)] = result
    return [table[tensor_key(tensor)] for tensor in tensors]


def all_operations(tensors: Sequence[te.Tensor], above: Container[Key] = ()) -> list[Operation]:
    """The stages that some tensors depend on, each once, after those it reads.

    Unlike `operations`, this goes into scans.

    Parameters
    ----------
    tensors : sequence of Tensor
    above : container of Key
        Tensors that are given: their stages are left out, and what is needed for them alone.
    """

    def below(tensors: Sequence[te.Tensor]) -> list[Operation]:
        return [tensor.op for tensor in tensors if tensor_key(tensor) not in above]

    return postorder(*below(tensors), parts=lambda op: below(items(op.input_tensors)))


def replace_inputs(op: Operation, table: Mapping[Key, te.Tensor]) -> Operation:
    """A stage that reads other tensors; the stage itself if they are the same.

    Its loop variables stay the same objects.

    Raises
    ------
    ArgumentError
        The stage is of a kind that is not known.
    """

    def replaced(tensor: te.Tensor) -> te.Tensor:
        return table.get(tensor_key(tensor), tensor)

    before = items(op.input_tensors)
    if all(tensor_key(replaced(tensor)) == tensor_key(tensor) for tensor in before):
        return op
    if isinstance(op, te.ComputeOp):
        return map_expressions(op, lambda expr: _reading(expr, replaced))
    if isinstance(op, te.ExternOp):
        return _replace_extern_inputs(op, replaced)
    if isinstance(op, te.ScanOp):
        init, update = (list(map(replaced, tensors)) for tensors in (op.init, op.update))
        return rebuild_scan(op, init, update, op.state_placeholder, list(map(replaced, op.inputs)))
    raise ArgumentError(
        f"the stage {op.name} is a {type(op).__name__}, which is not known; write it as "
        "te.compute, te.scan or te.extern"
    )


def inside_scans(order: Sequence[Operation]) -> dict[Key, Operation]:
    """The tensors that scans among some stages compute at each step, and which scan."""
    scans: dict[Key, Operation] = {}
    for op in order:
        if isinstance(op, te.ScanOp):
            body = scan_body(op)
            inside = [*op.state_placeholder, *(t for stage in body for t in outputs_of(stage))]
            recomputed = op.attrs[RECOMPUTED] if op.attrs and RECOMPUTED in op.attrs else []
            scans |= {tensor_key(tensor): op for tensor in [*inside, *recomputed]}
            scans |= inside_scans(body)
    return scans


def state_extents(extents: Sequence[Any]) -> list[Any]:
    """The extents of a scan's state behind its time: te.scan makes loop variables of int32."""
    return [extent.astype("int32") for extent in extents]


def rebuild_scan(
    op: Any,
    init: Sequence[te.Tensor],
    update: Sequence[te.Tensor],
    states: Sequence[te.Tensor],
    inputs: Sequence[te.Tensor] | None = None,
) -> Any:
    """A scan over the same times from other initial states, by other updates.

    Without `inputs` a `STEPWISE` scan becomes one that is not.
    """
    tag = "" if inputs is None and op.tag == STEPWISE else op.tag
    return scan_stage(op.name, tag, op.attrs, op.scan_axis, init, update, states, inputs or [])


def replace_bodies(op: Any, bodies: Sequence[Expr]) -> Any:
    """A compute stage with other bodies over the same axes."""
    result = compute_stage(op.name, op.tag, op.attrs, op.axis, bodies)
    if not len(op.attrs):
        return result
    # Attributes may name tensors, which TVM looks for among those that the stage reads.
    read = {tensor_key(tensor) for tensor in result.input_tensors}
    attrs = {key: value for key, value in op.attrs.items() if _named(value) <= read}
    return compute_stage(op.name, op.tag, attrs, op.axis, bodies)


def _named(value: Any) -> set[Key]:
    """The tensors that an attribute's value consists of, by their keys."""
    values = value if isinstance(value, tvm_ffi.Array) else [value]
    return {tensor_key(tensor) for tensor in values if isinstance(tensor, te.Tensor)}


def map_expressions(op: Any, change: Callable[[Expr], Expr]) -> Any:
    """A compute stage with each of its expressions changed, over the same axes."""
    return replace_bodies(op, map_bodies(op.body, change))


def rebuild_reduction(
    body: Any,
    sources: Sequence[Expr],
    condition: Expr | None = None,
    init: Sequence[Expr] | None = None,
    combiner: Any = None,
    axis: Sequence[Any] | None = None,
) -> list[Expr]:
    """All components of a reduction like `body`, with other sources.

    Parameters
    ----------
    body : Reduce
    sources : sequence of Expr
    condition, init, combiner, axis : optional
        Those of `body` if left out.
    """
    # TVM asks that the components share these very arrays.
    first = tirx.Reduce(
        body.combiner if combiner is None else combiner,
        list(sources),
        list(body.axis) if axis is None else list(axis),
        body.condition if condition is None else condition,
        0, list(body.init) if init is None else list(init),
    )  # fmt: skip
    return [
        first,
        *(
            tirx.Reduce(first.combiner, first.source, first.axis, first.condition, i, first.init)
            for i in range(1, len(sources))
        ),
    ]


def _replace_extern_inputs(op: Any, replaced: Callable[[te.Tensor], te.Tensor]) -> Any:
    """An extern stage that reads other tensors, in its buffers and by loads in its body."""
    inputs = [
        _of_shape(replaced(tensor), buffer.shape)
        for tensor, buffer in zip(op.inputs, op.input_placeholders, strict=True)
    ]
    table = {tensor_key(old): new for old, new in zip(op.inputs, inputs, strict=True)}

    def change(call: Any) -> Any:
        if is_load(call) and tensor_key(loaded(call)[0]) in table:
            return table[tensor_key(loaded(call)[0])](*loaded(call)[1])
        return call

    body = tvm_ffi.structural_map(op.body, (tvm.ir.Call, change))
    return extern_stage(
        op.name, op.tag, op.attrs, inputs, op.input_placeholders, op.output_placeholders, body
    )


def _of_shape(tensor: te.Tensor, shape: Sequence[Expr]) -> te.Tensor:
    """A tensor with these very extents as its shape: externs ask for the same objects."""
    if all(a.same_as(b) for a, b in zip(tensor.shape, shape, strict=True)):
        return tensor
    return copied(tensor, tensor.op.name, shape)


def map_bodies(bodies: Sequence[Expr], change: Callable[[Expr], Expr]) -> list[Expr]:
    """The bodies of a stage with each of their expressions changed."""
    first = bodies[0]
    if not isinstance(first, tirx.Reduce):
        return [change(body) for body in bodies]
    components = rebuild_reduction(
        first,
        [change(source) for source in first.source],
        change(first.condition),
        [change(value) for value in first.init],
        axis=[_map_axis_bounds(axis, change) for axis in first.axis],
    )
    return [components[int(body.value_index)] for body in bodies]


def _map_axis_bounds(axis: Any, change: Callable[[Expr], Expr]) -> Any:
    """A loop with its bounds changed, which may read tensors; its variable stays."""
    low, extent = change(axis.dom.min), change(axis.dom.extent)
    if low.same_as(axis.dom.min) and extent.same_as(axis.dom.extent):
        return axis
    return tirx.IterVar(tvm.ir.Range.from_min_extent(low, extent), axis.var, axis.iter_type)


def _reading(expr: Expr, replaced: Callable[[te.Tensor], te.Tensor]) -> Expr:
    """An expression that loads from other tensors."""

    def change(node: Expr) -> Expr:
        if not is_load(node):
            return node
        tensor = loaded_tensor(node)
        replacement = replaced(tensor)
        return (
            node if tensor_key(replacement) == tensor_key(tensor) else replacement(*children(node))
        )

    return transformed(expr, change)


def _deduplicate(tensors: Sequence[te.Tensor]) -> list[te.Tensor]:
    return list({tensor_key(tensor): tensor for tensor in tensors}.values())
