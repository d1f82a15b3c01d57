"""`jacobian`: Jacobians of models and of functions of modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import tvm

from ..autodiff.activity import Wrt, has_cotangent, select
from ..autodiff.jacobian import Mode, check_mode, jacobian_of_module, jacobian_of_program
from ..errors import ArgumentError
from ..frontend.model import Model
from ..ir.calls import result_types
from ..runtime.synchronized import one_at_a_time
from .forward import FORWARD, Forward
from .inputs import Inputs
from .subjects import refuse_arguments
from .tensors import Arrays
from .value_and_grad import ValueAndGrad


@overload
def jacobian(
    subject: tvm.IRModule,
    wrt: Wrt = None,
    of: int | None = None,
    *,
    mode: Mode = "auto",
    func: str = "main",
    rules: str = "auto",
) -> tvm.IRModule: ...


@overload
def jacobian(
    subject: Model,
    wrt: str | Sequence[str] | None = None,
    of: str | None = None,
    *,
    mode: Mode = "auto",
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> Jacobian: ...


def jacobian(
    subject: Any,
    wrt: Any = None,
    of: Any = None,
    *,
    mode: Mode = "auto",
    func: str = "main",
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> Any:
    """The Jacobian of an output, with all basis vectors in one program.

    Parameters
    ----------
    subject : Model or IRModule
    wrt : name or names, optional
        As of `value_and_grad`, or of `vjp` for a module.
    of : str or int, optional
        What is differentiated: an output of the model by name, or a result of the function by its
        position. Default: the first that is a float tensor.
    mode : "auto", "fwd" or "rev"
        Forward mode has a basis vector for each element of `wrt`, reverse mode one for each element
        of the output; by default the one with fewer.
    func : str
        The function of a module.
    training, target, winograd
        Of a model, as of `value_and_grad`.
    rules : "auto" or "derived"
        As of `vjp`.

    Returns
    -------
    Jacobian or IRModule
        Of a model, ``f(inputs, seed=0) -> (outputs, jacobians)`` of numpy arrays by ONNX name. Of a
        module, the module with ``<func>_jacobian(*args) -> (outputs, jacobians)`` added, a tuple
        with one for each entry of `wrt`. A Jacobian's first axes are those of the output, its last
        those of the value.

    Raises
    ------
    ArgumentError
        Unknown name or argument value, or shapes are not known.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        An entry of `wrt` is no float tensor, or no output is.
    RuleError
        A gradient rule of yours has no transpose, see `jvp`.

    Notes
    -----
    It computes as much as that many gradients, and needs as much memory: what a gradient keeps, for
    every basis vector.

    Examples
    --------
    >>> outputs, jacobians = gg.jacobian(model, wrt="x", of="logits")(x)
    """
    if isinstance(subject, Model):
        refuse_arguments("a Model", func=func)
        return Jacobian(subject, wrt, of, mode, training, rules, target, winograd)
    refuse_arguments("a module", training=training, target=target, winograd=winograd)
    return jacobian_of_module(subject, func, wrt, of, mode, rules)


class Jacobian(ValueAndGrad):
    """Outputs and Jacobians of a model; made by `jacobian`."""

    how_to_keep = "pickle the model, and call graphgrad.jacobian where it is needed"

    def __init__(
        self,
        model: Model,
        wrt: str | Sequence[str] | None,
        of: str | None,
        mode: Mode,
        training: bool | None,
        rules: str,
        target: Any,
        winograd: bool = True,
    ):
        super().__init__(model, wrt, None, training, rules, target, winograd)
        types = dict(zip(model.outputs, result_types(model.mod["main"].ret_ty), strict=True))
        floats = [name for name, ty in types.items() if has_cotangent(ty)]
        if not floats or (of is not None and of not in floats):
            raise ArgumentError(
                f"of={of!r}: the outputs of the model that are float tensors are {floats}"
            )
        check_mode(mode)
        self._of = model.outputs.index(floats[0] if of is None else of)
        self._mode = mode

    @one_at_a_time
    def __call__(self, inputs: Inputs, seed: int = 0) -> tuple[Arrays, Arrays]:  # type: ignore[override]
        """Compute outputs and Jacobians.

        Parameters
        ----------
        inputs, seed
            As of `ValueAndGrad`.

        Returns
        -------
        outputs, jacobians : dict of arrays, by ONNX name
            A Jacobian has the shape of the output and then that of the value.

        Raises
        ------
        InputError
            An array does not fit.
        OutOfMemoryError
            The device has too little memory.
        DeviceError
            The device failed.
        """
        arguments, forward, shapes = self._arguments(inputs, seed)
        values, jacobians = self._function(forward, shapes)(*arguments)
        return self._outputs(values), self._by_wrt(jacobians)

    def _compile_function(self, forward: Forward) -> Callable[..., Any]:
        """The compiled function from arguments to results and Jacobians."""
        wrt = select(forward.program, self._objective.wrt_variables)
        mod = jacobian_of_program(forward.program, wrt, (0, self._of), self._mode)
        return self._compile(mod, f"{FORWARD}_jacobian", "a Jacobian")
