"""`hvp`: Hessian-vector products of models and of functions of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np
import tvm

from ..autodiff.activity import Wrt, select
from ..autodiff.hvp import hvp_of_module, hvp_of_program
from ..errors import InputError
from ..frontend.model import Model
from ..runtime.synchronized import one_at_a_time
from .forward import FORWARD, Forward, LossChoice
from .inputs import Inputs, check_types, placed, read_arrays
from .subjects import refuse_arguments
from .tensors import Arrays
from .value_and_grad import ValueAndGrad


@overload
def hvp(
    subject: tvm.IRModule, wrt: Wrt = None, *, func: str = "main", rules: str = "auto"
) -> tvm.IRModule: ...


@overload
def hvp(
    subject: Model,
    wrt: str | Sequence[str] | None = None,
    *,
    loss: LossChoice = None,
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> HessianVectorProduct: ...


def hvp(
    subject: Any,
    wrt: Any = None,
    *,
    func: str = "main",
    loss: LossChoice = None,
    training: bool | None = None,
    rules: str = "auto",
    target: Any = "llvm",
    winograd: bool = True,
) -> Any:
    """Products of the Hessian with vectors, by forward mode over reverse mode.

    A product costs about two gradients, and no Hessian is formed.

    Parameters
    ----------
    subject : Model or IRModule
    wrt : name or names, optional
        Inputs and parameters. Default: of a model every parameter that can train, of a function
        every parameter that is a float tensor.
    func : str
        The function of a module.
    loss, training, target, winograd
        Of a model, as of `value_and_grad`.
    rules : "auto" or "derived"
        As of `vjp`.

    Returns
    -------
    HessianVectorProduct or IRModule
        Of a model, ``f(inputs, vectors, cotangent=None, seed=0) -> (outputs, gradients, products)``
        of numpy arrays by ONNX name. Of a module, the module with ``<func>_hvp(*args, *cotangents,
        *vectors) -> (outputs, gradients, products)`` added: one vector for each entry of `wrt`, in
        order and of its type; and one cotangent for each float output, as of `vjp`, but none where
        the only one is a scalar.

    Raises
    ------
    ArgumentError
        Unknown name or argument value; a value of `wrt` is computed by others; an argument of a
        model is given with a module.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    NotDifferentiableError
        An entry of `wrt` is no float tensor, or no output is.
    RuleError
        A gradient rule of yours has no transpose, see `jvp`.

    Examples
    --------
    >>> product = gg.hvp(model, loss="cross_entropy")
    >>> _, gradients, products = product({"x": x, "targets": labels}, vectors=gradients)
    """
    if isinstance(subject, Model):
        refuse_arguments("a Model", func=func)
        return HessianVectorProduct(subject, wrt, loss, training, rules, target, winograd)
    refuse_arguments("a module", loss=loss, training=training, target=target, winograd=winograd)
    return hvp_of_module(subject, func, wrt, rules)


class HessianVectorProduct(ValueAndGrad):
    """Outputs, gradients and Hessian-vector products of a model; made by `hvp`."""

    how_to_keep = "pickle the model, and call graphgrad.hvp where it is needed"

    @one_at_a_time
    def __call__(  # type: ignore[override]
        self, inputs: Inputs, vectors: Mapping[str, Any], cotangent: Any = None, seed: int = 0
    ) -> tuple[Arrays, Arrays, Arrays]:
        """Compute outputs, gradients and products.

        Parameters
        ----------
        inputs, cotangent, seed
            As of `ValueAndGrad`.
        vectors : dict of arrays
            By the names that are differentiated, each of its value's shape and dtype. One that is
            left out is zero.

        Returns
        -------
        outputs, gradients, products : dict of arrays, by ONNX name
            A product has the shape and dtype of its value: Σ over all vectors v of ∂²L/∂w∂v · v.

        Raises
        ------
        InputError
            An array, a cotangent or a vector does not fit.
        OutOfMemoryError
            The device has too little memory.
        DeviceError
            The device failed.
        """
        arguments, forward, shapes = self._arguments(inputs, seed)
        arguments += self._cotangents(forward, cotangent)
        wrt = select(forward.program, self._objective.wrt_variables)
        arguments += self._vectors(vectors, [var.ty for var in wrt])
        values, gradients, products = self._function(forward, shapes)(*arguments)
        return self._outputs(values), self._by_wrt(gradients), self._by_wrt(products)

    def _compile_function(self, forward: Forward) -> Callable[..., Any]:
        """The compiled function from arguments, cotangents and vectors to the results."""
        wrt = select(forward.program, self._objective.wrt_variables)
        mod = hvp_of_program(forward.program, wrt)
        return self._compile(mod, f"{FORWARD}_hvp", "a Hessian-vector product")

    def _vectors(self, vectors: Mapping[str, Any], types: Sequence[Any]) -> list[Any]:
        """The vectors, checked and placed; zeros in the place of those that are left out."""
        by_name = dict(zip(self._objective.wrt, types, strict=True))
        if not isinstance(vectors, Mapping):
            raise InputError(
                f"vectors is a {type(vectors).__name__}; give a dict of arrays by the names that "
                f"are differentiated: {list(by_name)}"
            )
        unknown = [name for name in vectors if name not in by_name]
        if unknown:
            raise InputError(
                f"vector {unknown[0]!r}: nothing of that name is differentiated; give some of "
                f"{list(by_name)}"
            )
        given = read_arrays(dict(vectors), self._device, "vector")
        check_types(given, by_name, "vector")
        complete = {
            name: given.get(name, np.zeros([int(n) for n in ty.shape], str(ty.dtype)))
            for name, ty in by_name.items()
        }
        return list(placed(complete, self._staging, "vector").values())
