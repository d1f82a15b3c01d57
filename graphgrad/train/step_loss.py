"""The loss that a step returns: a number that may stay on the device until somebody reads it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import Any, SupportsFloat

import numpy as np
import tvm

from .tensors import read_number


def _binary(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """An operator and its reflection, of the loss as a float."""

    def forward(self: _AsFloat, other: Any) -> Any:
        return function(float(self), other)

    def reflected(self: _AsFloat, other: Any) -> Any:
        return function(other, float(self))

    return forward, reflected


def _unary(function: Callable[..., Any]) -> Any:
    """A method of the loss as a float."""

    def method(self: _AsFloat, *arguments: Any) -> Any:
        return function(float(self), *arguments)

    return method


class _AsFloat:
    """A mixin with the operators and methods of float, for a class that defines ``__float__``.

    A subclass of float needs them too: numpy, for one, gives way to a float, but not to its
    subclasses.
    """

    __float__: Callable[[], float]

    def item(self) -> float:
        """A plain float."""
        return float(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(float(self), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        floats = (float(value) if isinstance(value, _AsFloat) else value for value in inputs)
        return getattr(ufunc, method)(*floats, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod)
    __divmod__, __rdivmod__ = _binary(divmod)
    __pow__, __rpow__ = _binary(operator.pow)
    __lt__, __gt__ = _binary(operator.lt)
    __le__, __ge__ = _binary(operator.le)
    __eq__, __ne__ = _binary(operator.eq)[0], _binary(operator.ne)[0]

    __abs__, __neg__, __pos__ = _unary(abs), _unary(operator.neg), _unary(operator.pos)
    __bool__, __int__, __trunc__ = _unary(bool), _unary(int), _unary(math.trunc)
    __ceil__, __floor__, __round__ = _unary(math.ceil), _unary(math.floor), _unary(round)
    __hash__, __repr__, __str__ = _unary(hash), _unary(repr), _unary(str)
    __format__ = _unary(format)
    as_integer_ratio, is_integer = _unary(float.as_integer_ratio), _unary(float.is_integer)
    hex = _unary(float.hex)


class ReadLoss(_AsFloat, float):
    """The loss of a step that is over: a float, which knows what `StepLoss` does besides.

    Parameters
    ----------
    value : number
    applied : bool
        May be left out, because some functions make new numbers by the class of a float they get.

    Attributes
    ----------
    applied : bool
        Whether the step changed anything: loss, gradients and statistics were finite. False for a
        micro-batch that does not end its window: nothing was applied yet.
    is_read : True
        Whether asking waits for nothing any more.
    """

    applied: bool
    is_read = True

    def __new__(cls, value: SupportsFloat, applied: bool = True) -> ReadLoss:  # noqa: D102
        self = super().__new__(cls, value)
        self.applied = applied
        return self

    def settle(self) -> ReadLoss:
        """Itself: there is nothing to wait for."""
        return self


class StepLoss(_AsFloat, Real):
    """The loss of one step: a number to all who ask, until then a tensor on the device.

    The first to ask waits for the device. While nobody asks, the next steps are queued behind it,
    unless their inputs are copied from the host, which waits. It serves where a float does:
    arithmetic, comparison, formatting, ``math``, numpy. What insists on the type float, such as
    ``json``, takes ``float(loss)``.

    Parameters
    ----------
    value : number or tensor
        A scalar tensor is kept alive, and read once.
    counts : (tensor, tensor), optional
        How many steps had changed something, before and after this one.
    applied : bool
        The answer where there are no counts.

    Raises
    ------
    DeviceError
        When asked: the device failed since.
    """

    def __init__(
        self,
        value: SupportsFloat | tvm.runtime.Tensor,
        counts: tuple[tvm.runtime.Tensor, tvm.runtime.Tensor] | None = None,
        applied: bool = True,
    ):
        self._value = value
        self._counts = counts
        self._applied = applied

    @property
    def applied(self) -> bool:
        """Whether the step changed anything: loss, gradients and statistics were finite.

        False for a micro-batch that does not end its window: nothing was applied yet.
        """
        if self._counts is not None:
            before, after = map(read_number, self._counts)
            self._applied = after > before
            self._counts = None
        return self._applied

    @property
    def is_read(self) -> bool:
        """Whether asking waits for nothing any more."""
        return self._counts is None and not isinstance(self._value, tvm.runtime.Tensor)

    def settle(self) -> ReadLoss:
        """Wait for the device, unless that was done, and return the same loss as a float."""
        return ReadLoss(float(self), self.applied)

    def __float__(self) -> float:
        if isinstance(self._value, tvm.runtime.Tensor):
            self._value = read_number(self._value)
        return float(self._value)
