"""Gradient accumulation: a step over several micro-batches, as two Relax functions.

One function adds a micro-batch to the sums of the window, the other ends the window by the update.
The *window* is the micro-batches of one step. Let wᵢ be the divisor of the mean in the loss of
micro-batch i: its number of examples, unless the loss weights or ignores labels. Then the gradient
of the window is

    Σ wᵢ gᵢ / Σ wᵢ

so that the window is one big batch wherever nothing couples the examples of a batch. A micro-batch
none of whose labels counts has no mean: wᵢ = 0, and gᵢ and lossᵢ are 0 / 0. It adds nothing.

What is not finite stays so in a sum. The end of the window therefore looks at the sums alone, and a
single bad micro-batch discards the whole window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..autodiff.reverse import Gradients
from ..frontend.model import Model
from ..ir.tensor import Emitter, Tensor, accumulator_dtype, is_float
from ..ir.write import write_function
from ..layout.choice import MODEL_LAYOUT, Layout
from ..ops import functional as op
from ..ops.copy import copy_of
from ..ops.many import all_finite
from .forward import Forward
from .inputs import owned_types
from .loss_scale import LossScale
from .optimizer import Optimizer
from .update import Update, allow_donations

MICRO_BATCH = "graphgrad.micro_batch"
END_OF_WINDOW = "graphgrad.end_of_window"


class OpenWindow:
    """The variables of what a window has summed up so far.

    Parameters
    ----------
    weights, state : sequence of relax.Var

    Attributes
    ----------
    loss, weight : relax.Var
        Σ wᵢ lossᵢ and Σ wᵢ, float64 scalars. The first is not finite if a statistic was not.
    statistics : list of relax.Var
        The statistics that the window has reached.
    gradients : list of relax.Var
        Σ wᵢ gᵢ, in float32 for parameters of half precision.
    """

    def __init__(self, weights: Sequence[Any], state: Sequence[Any]):
        self.loss = relax.Var("window.loss", relax.TensorType([], "float64"))
        self.weight = relax.Var("window.weight", relax.TensorType([], "float64"))
        self.statistics = [relax.Var(f"window.{var.name}", var.ty) for var in state]
        self.gradients = [
            relax.Var(
                f"accumulator.{var.name}",
                relax.TensorType(var.ty.shape, accumulator_dtype(str(var.ty.dtype))),
            )
            for var in weights
        ]

    @property
    def all(self) -> list[Any]:
        """All of them, in the order in which functions take and return them."""
        return [self.loss, self.weight, *self.statistics, *self.gradients]


def build_micro_batch(
    forward: Forward, trained: Sequence[str], scale: LossScale | None = None
) -> tvm.IRModule:
    """Write the function that adds a micro-batch to a window.

    Parameters
    ----------
    forward : Forward
        With a loss.
    trained : sequence of str
        Names of the parameters that the optimizer moves.
    scale : LossScale, optional
        Of a step that scales its loss; the window sums up gradients of the loss itself.

    Returns
    -------
    IRModule
        With ``micro_batch(*inputs, [targets], opens, [seed], [scale], *params, *state, *window) ->
        (loss,
        *window)``, where ``*window`` is `OpenWindow.all`, donated, and `opens` is an int64 scalar:
        1 for the first micro-batch of a window, which overlooks what the window held, else 0. The
        loss is that of the micro-batch alone.

    Raises
    ------
    MissingGradientError
    """
    weights = forward.weights(trained)
    derivative = Gradients(forward.program, weights)
    window = OpenWindow(weights, forward.state)
    opens = relax.Var("opens", relax.TensorType([], "int64"))

    def body(emitter: Emitter) -> Any:
        first = emitter.lift(opens)
        is_first = op.greater(first, 0)
        window_statistics = [emitter.lift(var) for var in window.statistics]
        pairs = zip(map(emitter.lift, forward.state), window_statistics, strict=True)
        current_statistics = [op.where(is_first, *pair) for pair in pairs]
        state = [statistic.expr for statistic in current_statistics]
        loss, gradients, new_statistics = forward.emit(emitter, derivative, state, scale)
        with emitter.at(None, "accumulate"):
            weight = _weight(forward, emitter)
            # Without a label that counts, the loss is 0 / 0. A NaN with a weight above 0 is a
            # failure of the model, and has to discard the window.
            is_empty = op.logical_and(op.equal(weight, 0.0), op.isnan(loss))
            counted = op.where(is_empty, 0.0, loss)
            # Statistics are no sums: what is not finite now may be finite again after the next
            # micro-batch. So they stay, and the sum of the losses remembers it.
            new_statistics = new_statistics or current_statistics
            floats = [statistic for statistic in new_statistics if is_float(statistic.dtype)]
            finite = all_finite([counted, *floats])
            kept_statistics = [
                op.where(finite, *pair)
                for pair in zip(new_statistics, current_statistics, strict=True)
            ]
            weighted = weight * counted.astype(weight.dtype)
            unit = emitter.lift(relax.const(1.0, "float64"))
            terms = [(unit, op.where(finite, weighted, math.nan)), (weight, unit)]
            terms += [(weight, gradient) for gradient in gradients]
            totals = [emitter.lift(var) for var in (window.loss, window.weight, *window.gradients)]
            sums = [
                _added(emitter, first, total, *term)
                for total, term in zip(totals, terms, strict=True)
            ]
            # A loss that is a parameter would change when the window ends.
            returned_loss = emitter.emit(copy_of(loss))
        return (returned_loss, *sums[:2], *kept_statistics, *sums[2:])

    owned = [*forward.params, *forward.state, *window.all]
    inputs = [*forward.arguments, opens, *forward.seed, *([scale.scale] if scale else []), *owned]
    written = derivative.write(MICRO_BATCH, inputs, body)
    # Result 0 is the loss, which takes the place of no parameter.
    return allow_donations(written, MICRO_BATCH, inputs, window.all, first=1)


def build_end_of_window(
    model: Model,
    trained: Sequence[str],
    optimizer: Optimizer,
    layout: Layout = MODEL_LAYOUT,
    scale: LossScale | None = None,
) -> tvm.IRModule:
    """Write the function that ends a window: the optimizer's update by its mean gradient.

    Parameters
    ----------
    model : Model
    trained : sequence of str
        Names of the parameters that the optimizer moves.
    optimizer : Optimizer
    layout : Layout
        In which they, their buffers and their gradients are stored.
    scale : LossScale, optional

    Returns
    -------
    IRModule
        With ``end_of_window(rate, updates, *trained params, *state, *buffers, *scale, *window) ->
        (updates, *trained params, *state, *buffers, *scale)``, as of `build_step`. The statistics
        become those of the window. Where anything in the window was not finite, all but the scale
        are returned unchanged. The window itself is only read.
    """
    types = owned_types(model)
    weights = [relax.Var(name, layout.stored_type(name, types[name])) for name in trained]
    state = [relax.Var(name, types[name]) for name in model.state]
    update = Update(optimizer, weights, state, scale)
    window = OpenWindow(weights, state)

    def body(emitter: Emitter) -> Any:
        with emitter.at(None, "update"):
            total, count = emitter.lift(window.loss), emitter.lift(window.weight)

            def means() -> list[Tensor]:
                sums = map(emitter.lift, window.gradients)
                return [gradient_sum / count.astype(gradient_sum.dtype) for gradient_sum in sums]

            gradients = [
                mean.astype(str(var.ty.dtype)) for mean, var in zip(means(), weights, strict=True)
            ]
            statistics = [emitter.lift(var) for var in window.statistics]
            # Means are emitted twice, for the update and for the check that all is finite: a value
            # with two readers would be stored, and take as much memory as the gradients.
            checked = [total, count, *means()]
            return tuple(update.emit(emitter, gradients, statistics, checked))

    inputs = [update.rate, update.updates, *update.replaced, *window.all]
    written = write_function(tvm.IRModule(), END_OF_WINDOW, inputs, body)
    # Result 0 is the count of updates, which is returned in memory of its own.
    return allow_donations(written, END_OF_WINDOW, inputs, update.replaced, first=1)


def _weight(forward: Forward, emitter: Emitter) -> Tensor:
    """Emit how much a micro-batch counts in its window, a float64 scalar."""
    count = len(forward.model.inputs)
    inputs, targets = forward.arguments[:count], forward.arguments[count:]
    lifted = emitter.lift(targets[0]) if targets else None
    weight = forward.loss.divisor([var.ty for var in inputs], forward.outputs, lifted)
    return weight if isinstance(weight, Tensor) else emitter.lift(relax.const(weight, "float64"))


def _added(emitter: Emitter, first: Tensor, total: Tensor, weight: Tensor, term: Tensor) -> Tensor:
    """Emit ``total + weight · term``; in the first micro-batch of a window, ``weight · term``.

    A weight of 0 leaves the total as it is, whatever the term. All is one tensor expression, so
    that fusion can make it part of the kernel that computes the term.
    """
    dtype = total.dtype

    def sums(first: te.Tensor, total: te.Tensor, weight: te.Tensor, term: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, dtype)

        def element(*indices: Any) -> Any:
            # Selected, not multiplied by 0: the old total may hold anything before the first
            # micro-batch, and the term of a weight of 0 is NaN.
            product = weight().astype(dtype) * term(*indices).astype(dtype)
            return tirx.Select(first() > 0, zero, total(*indices)) + tirx.Select(
                weight() > 0, product, zero
            )

        return te.compute(total.shape, element, name="accumulate")

    arguments = [tensor.expr for tensor in (first, total, weight, term)]
    return emitter.lift(emitter.builder.emit_te(sums, *arguments, primfunc_name_hint="accumulate"))
