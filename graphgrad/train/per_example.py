"""`per_example_grads`: a gradient for each example of a batch, of models and of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import tvm

from ..autodiff.activity import Wrt, select
from ..autodiff.per_example import per_example_of_module, per_example_of_program
from ..errors import ArgumentError, InputError, NotDifferentiableError
from ..frontend.model import Model
from ..ir.tensor import type_shape
from ..runtime.synchronized import one_at_a_time
from .forward import FORWARD, Forward, LossChoice
from .inputs import Inputs
from .on_device import Shapes
from .subjects import refuse_arguments
from .tensors import Arrays, as_arrays
from .value_and_grad import LOSS, ValueAndGrad


@overload
def per_example_grads(
    subject: tvm.IRModule,
    wrt: Wrt = None,
    *,
    count: int,
    examples: Sequence[str] | None = None,
    func: str = "main",
    rules: str = "auto",
) -> tvm.IRModule: ...


@overload
def per_example_grads(
    subject: Model,
    wrt: str | Sequence[str] | None = None,
    loss: LossChoice = None,
    *,
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> PerExampleGradients: ...


def per_example_grads(
    subject: Any,
    wrt: Any = None,
    loss: LossChoice = None,
    *,
    count: int | None = None,
    examples: Sequence[str] | None = None,
    func: str = "main",
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> Any:
    """The gradient of each example's loss, for a whole batch in one pass.

    Parameters
    ----------
    subject : Model or IRModule
        A module's function computes the loss of one example, a scalar.
    wrt : name or names, optional
        Parameters: as of `value_and_grad`, or of `vjp` for a module.
    loss : str or relax.Function
        Of a model, as of `train_step`: its value for a batch of one example is differentiated.
    count : int
        Of a module: the number of examples.
    examples : sequence of str, optional
        Of a module: the parameters that differ between examples. Default: all that are not in
        `wrt`.
    func : str
        The function of a module.
    training, target, winograd
        Of a model, as of `value_and_grad`. Dropouts drop other values in each example.
    rules : "auto" or "derived"
        As of `vjp`.

    Returns
    -------
    PerExampleGradients or IRModule
        Of a model, ``f(inputs, seed=0) -> (losses, gradients)``, arrays with an axis for the
        examples in front; ``gradients`` by ONNX name. Of a module, the module with
        ``<func>_per_example(*args) -> (losses, gradients)`` added, in which `examples` have that
        axis, too.

    Raises
    ------
    ArgumentError
        Unknown name or argument value, or no loss.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        An entry of `wrt` is no float tensor; or the gradient of an example depends on the others,
        by batch norms in training form.

    Examples
    --------
    >>> f = gg.per_example_grads(model, loss="cross_entropy")
    >>> losses, gradients = f({"x": x, "targets": labels})
    >>> norms = np.linalg.norm(gradients["fc.weight"].reshape(len(losses), -1), axis=1)
    """
    if isinstance(subject, Model):
        refuse_arguments("a Model", count=count, examples=examples, func=func)
        if loss is None:
            raise ArgumentError(
                "loss is missing: the gradient of an example is that of its loss; give loss=, as "
                "of train_step, or the name of a scalar output"
            )
        return PerExampleGradients(subject, wrt, loss, training, rules, target, winograd)
    refuse_arguments("a module", loss=loss, training=training, target=target, winograd=winograd)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"count={count!r}: give the number of examples, at least 1")
    return per_example_of_module(subject, func, wrt, examples, count, rules)


class PerExampleGradients(ValueAndGrad):
    """Losses and gradients of the examples of a batch; made by `per_example_grads`."""

    how_to_keep = "pickle the model, and call graphgrad.per_example_grads where it is needed"

    @one_at_a_time
    def __call__(self, inputs: Inputs, seed: int = 0) -> tuple[np.ndarray, Arrays]:  # type: ignore[override]
        """Compute the losses and gradients of all examples.

        Parameters
        ----------
        inputs : dict of arrays, or an array for a model with one input
            The examples lie along the first axis of each. With a loss that takes targets, also
            ``targets``.
        seed : int
            As of `ValueAndGrad`.

        Returns
        -------
        losses : array of shape (examples,)
        gradients : dict of arrays, by ONNX name
            Each of shape (examples, *shape of the value).

        Raises
        ------
        InputError
            An array does not fit, or the inputs have not the same number of examples.
        NotDifferentiableError
            The gradient of an example depends on the others.
        OutOfMemoryError, DeviceError
        """
        arguments, forward, shapes = self._arguments(inputs, seed)
        losses, gradients = self._function(forward, shapes)(*arguments)
        return as_arrays({LOSS: losses})[LOSS], self._by_wrt(gradients)

    def _seeds(self, word: int, shapes: Shapes) -> np.ndarray:
        """A seed for each example."""
        return word + np.arange(self._count(shapes))

    def _count(self, shapes: Shapes) -> int:
        """The number of examples in a batch.

        Raises
        ------
        InputError
            The inputs differ in it, or one has no axis for them.
        ArgumentError
            The model computes batches of one size only.
        """
        names = list(self._model.inputs)
        firsts = {shape[0] for shape in shapes if shape}
        if len(firsts) != 1 or not all(shapes):
            raise InputError(
                f"the examples lie along the first axis of each input, but their shapes are "
                f"{dict(zip(names, shapes, strict=True))}"
            )
        (count,) = firsts
        fixed = [n for n, ty in self._objective.input_types.items() if _is_fixed(ty)]
        if fixed and count != 1:
            raise ArgumentError(
                f"input {fixed[0]!r} has a fixed batch of {count}, so no example can be computed "
                "alone: export the model with a symbolic first dimension"
            )
        return count

    def _compile_function(self, forward: Forward) -> Callable[..., Any]:
        """The compiled function from a batch to the losses and gradients of its examples."""
        inputs = forward.program.params[: len(self._model.inputs)]
        shapes = tuple(tuple(type_shape(param.ty)) for param in inputs)
        count = self._count(shapes)
        one = self._objective.forward([(1, *shape[1:]) for shape in shapes])
        statistics = one.program.result.ty.fields[-1].fields
        if len(statistics):
            raise NotDifferentiableError(
                "the batch norms are in training form, so the loss of an example depends on the "
                "others, and it has no gradient of its own; give training=False"
            )
        wrt = select(one.program, self._objective.wrt_variables)
        examples = [*one.arguments, *one.seed]
        mod = per_example_of_program(one.program, wrt, examples, count, (0,), is_batch=True)
        return self._compile(mod, f"{FORWARD}_per_example", "gradients per example")


def _is_fixed(ty: Any) -> bool:
    """Whether the first extent of an input is a number."""
    return isinstance(type_shape(ty)[0], int)
