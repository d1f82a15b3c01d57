"""Mixed precision as a pass over modules, for pipelines of one's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm

from ..ir.inline import inline_calls
from ..ir.program import Program
from ..ir.write import write_program
from .choice import Precision, precision_of
from .mixed import mix_precision


def MixedPrecision(
    precision: str | Precision,
    func_name: str = "main",
    weights: Collection[str] | None = None,
) -> tvm.ir.transform.Pass:
    """A pass that lets a function of a module compute in fewer bits, with the same interface.

    To be run before the function is differentiated: the gradient of a cast is a cast, so gradients
    are computed in the precision of what they are of. Calls of other Relax functions are inlined.

    Parameters
    ----------
    precision : str or Precision
        What computes in which precision says `Precision`. Nothing changes with ``"float32"`` and
        ``"tf32"``.
    func_name : str
    weights : collection of str, optional
        Names of the parameters that are weights: where one meets rounded values, as a bias does, it
        is rounded, too. By default those from the number ``num_input`` on, if the function has that
        attribute, else none.

    Raises
    ------
    ArgumentError
        The precision is unknown. And, when the pass runs: there is no such function, it overwrites
        memory, or the precision names a node that it does not have.

    Examples
    --------
    >>> mod = gg.transform.MixedPrecision("bfloat16")(mod)
    >>> mod = gg.transform.Gradient("main")(mod)
    """
    chosen = precision_of(precision)

    def transform(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        return _with_precision(mod, func_name, chosen, weights)

    return tvm.transform.module_pass(opt_level=0, name="graphgrad.MixedPrecision")(transform)


def _with_precision(
    mod: tvm.IRModule, name: str, precision: Precision, weights: Collection[str] | None
) -> tvm.IRModule:
    """The module with a function computing in a precision; see `MixedPrecision`."""
    program = inline_calls(mod, name)
    function = mod[name]
    mixed = mix_precision(program, precision, _weights(program, function, weights))
    if mixed is program:
        return mod
    variable = mod.get_global_var(name)
    others = {each: mod[each] for each in mod.get_global_vars() if not each.same_as(variable)}
    written = write_program(mixed, name, tvm.IRModule(others, attrs=mod.attrs))
    functions = {each.name_hint: (each, written[each]) for each in written.get_global_vars()}
    _, changed = functions.pop(name)
    changed = changed.with_attrs(function.attrs) if function.attrs else changed
    return tvm.IRModule({**dict(functions.values()), variable: changed}, attrs=mod.attrs)


def _weights(program: Program, function: Any, weights: Collection[str] | None) -> Collection[str]:
    """The names of the parameters that are weights, given or by the function's attribute."""
    if weights is not None:
        return weights
    first = (function.attrs or {}).get("num_input", len(program.params))
    return [param.name for param in program.params[int(first) :]]
