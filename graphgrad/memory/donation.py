"""Donation: a kernel writes an output over an input that the caller gives away.

A Relax function asks for it with the attribute ``graphgrad.donated``: pairs of the position of a
parameter and that of an output among all tensors of the result. A pair is granted only where it is
provably safe. Otherwise the output is written to a fresh buffer, which is as right. The granted
pairs are recorded in the attribute ``graphgrad.donated_done``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..errors import ArgumentError
from ..ir.calls import result_types
from ..ir.kernel_calls import bytes_of, drop_unused_kernels, is_kernel_call
from ..ir.passes import Phase, compiler_pass
from ..ir.rewrite import rebuilt, replace_body
from ..ir.visits import nodes_in
from .alias import Aliases, Module
from .overwrite import may_overwrite, overwriting
from .regions import OUTSIDE, Leaf, Tree, leaves

DONATED = "graphgrad.donated"
DONATED_DONE = "graphgrad.donated_done"

KNOWN_TO_CALLER = "graphgrad.donation_known_to_caller"
"""Attribute of a function whose callers in the module know that it overwrites arguments."""

_LARGE = 1 << 25
"""From how many bytes on a result is written over what nothing reads any more. The kernel is
compiled once more for that, which smaller tensors are not worth."""


@dataclass(frozen=True)
class _Site:
    """A call of a kernel that may write a result over an argument.

    Attributes
    ----------
    var : relax.Var
        The variable that the call is bound to.
    result, argument : int
        Positions among the kernel's results and among its arguments.
    """

    var: Any
    result: int
    argument: int


@compiler_pass(
    Phase.SCHEDULED,
    to=Phase.DONATED,
    because="a schedule decides whether a kernel reads an element after it has stored another one",
)
def donate(mod: tvm.IRModule) -> tvm.IRModule:
    """Let kernels write outputs over the parameters that are donated, where that is safe.

    Raises
    ------
    ArgumentError
        The attribute is malformed, or names a parameter or an output twice.
    """
    donating = [
        (name, func)
        for name, func in mod.functions.items()
        if isinstance(func, relax.Function) and func.attrs and DONATED in func.attrs
    ]
    if not donating:
        return mod
    # One builder, and one search for what is unused: each goes through the whole module.
    builder = relax.BlockBuilder(mod)
    replaced = [
        kernel for name, func in donating for kernel in _Donation(builder, name, func).apply()
    ]
    return drop_unused_kernels(builder.get(), replaced)


def may_have_donations(mod: tvm.IRModule, name: Any) -> bool:
    """Whether a function of a module may overwrite any of its arguments.

    It may not if another function of the module calls it without knowing of the donation, nor if
    the address of some argument cannot be compared with those of the arguments overwritten.
    """
    func = mod[name]
    callers_know = KNOWN_TO_CALLER in (func.attrs or {}) or not _is_called(mod, name)
    return callers_know and all(_has_known_memory(param.ty) for param in func.params)


def check_requests(mod: tvm.IRModule, name: Any) -> None:
    """Raise if the donations that a function asks for are malformed.

    Raises
    ------
    ArgumentError
        As `donate`.
    """
    result = Module(mod.functions).function(name).result
    _requested(name, mod[name], len(_flatten(result)))


def donated_params(func: relax.Function) -> set[Any]:
    """The parameters that a function may overwrite; none if the attribute is malformed."""
    try:
        return {func.params[int(parameter)] for parameter, _ in (func.attrs or {}).get(DONATED, ())}
    except (IndexError, TypeError, ValueError):
        return set()  # the pass refuses the attribute and says why


class _Donation:
    """The donations of one Relax function of a builder's module."""

    def __init__(self, builder: relax.BlockBuilder, name: tvm.ir.GlobalVar, func: relax.Function):
        self.mod: tvm.IRModule = builder.get()
        self.name, self.func = name, func
        self._builder = builder
        self.aliases: Aliases = Module(self.mod.functions, views=True).function(name)
        self.outputs = _flatten(self.aliases.result)
        self.pairs = _requested(name, func, len(self.outputs))

    def apply(self) -> list[Any]:
        """Let the function make its safe donations, and record them.

        Returns
        -------
        list of GlobalVar
            The kernels that it calls others in place of.
        """
        accepted: dict[Any, dict[int, int]] = {}
        granted = []
        for parameter, output in self.pairs if may_have_donations(self.mod, self.name) else []:
            sites = self._safe_sites(parameter, output)
            for site in sites:
                accepted.setdefault(site.var, {})[site.result] = site.argument
            if sites:
                granted.append([parameter, output])
        for site in self._sites_of_temporaries(accepted):
            accepted[site.var] = {site.result: site.argument}
        return self._rewrite(accepted, granted)

    def _sites_of_temporaries(self, accepted: Container[Any]) -> Iterator[_Site]:
        """Yield the calls that may write a large result over an argument that they read last.

        Nobody has asked for these: they spare a tensor as large as the gradient of a vocabulary.
        Calls of `accepted` are left out.
        """
        for var, call in self.aliases.calls.items():
            kernel = self._kernel(call)
            ty, size = var.ty, bytes_of(var.ty)
            if kernel is None or var in accepted or size is None or size < _LARGE:
                continue
            for value in call.args[1].fields:
                donated = self._temporary(value)
                if donated is None or not _same_tensor_type(value.ty, ty):
                    continue
                argument = self._safe_argument(value, call, kernel, 0)
                if argument is None:
                    continue
                site = _Site(var, 0, argument)
                if self._is_last_use(site, donated, set()):
                    yield site
                    break

    def _temporary(self, value: Any) -> Leaf | None:
        """The memory of a kernel's result that only this function uses; None of other values.

        A kernel that reshapes a parameter or a constant becomes a view of it.
        """
        tree = self.aliases.values.get(value) if isinstance(value, relax.Var) else None
        if not isinstance(tree, Leaf) or tree.source[0] != "call":
            return None
        is_own = (
            self._kernel(self.aliases.calls.get(tree.source[1])) is not None
            and self.aliases.region(tree) not in self._lasting
        )
        return tree if is_own else None

    @cached_property
    def _lasting(self) -> set[int]:
        """The classes of memory that outlives a call, or is there before it."""
        constants = [constant.leaf for constant in self.aliases.constants]
        return self.aliases.escaping() | self.aliases.regions_of([*self.aliases.params, *constants])

    def _safe_sites(self, parameter: int, output: int) -> list[_Site]:
        """The calls that compute an output, if all of them may do so over a parameter; else none.

        Nothing else may live in the parameter's memory, and each use of that memory after one of
        these calls must be a use of the output.
        """
        var, result = self.func.params[parameter], self.outputs[output]
        donated = self.aliases.params[parameter]
        if not isinstance(donated, Leaf) or result is None:
            return []
        outputs: set[Any] = set()
        sites = self._sites(var, result, outputs)
        shared = {self.aliases.region(donated), self.aliases.region(result)}
        returned = [
            leaf for leaf in leaves(self.aliases.result) if self.aliases.region(leaf) in shared
        ]
        # Memory in OUTSIDE may be read by others at any time; memory that is returned twice would
        # make a second output the overwritten parameter.
        if not sites or OUTSIDE in shared or len(returned) > 1:
            return []
        return sites if all(self._is_last_use(site, donated, outputs) for site in sites) else []

    def _sites(self, parameter: Any, result: Leaf, outputs: set[Any]) -> list[_Site] | None:
        """The calls that compute a result; None if one of them cannot do so over the parameter.

        Of an If these are the calls in its branches.

        Parameters
        ----------
        parameter : relax.Var
        result : Leaf
        outputs : set of relax.Var
            Receives the variables that hold the result.

        Returns
        -------
        list of _Site or None
            Empty where the result is the parameter itself.
        """
        if result.source == self.aliases.values[parameter].source:
            return []  # the parameter as it is, as in one branch of an If: nothing is written
        kind, var, *path = result.source
        if kind == "if":
            outputs.add(var)
            by_branch = [
                self._sites(parameter, _member(tree, path), outputs)
                for tree in self.aliases.branches[var]
            ]
            return (
                None if None in by_branch else [site for sites in by_branch for site in sites or []]
            )
        call = self.aliases.calls.get(var) if kind == "call" else None
        kernel = self._kernel(call)
        if kernel is None:
            return None
        outputs.add(var)
        index = path[0] if path else 0
        argument = self._safe_argument(parameter, call, kernel, index)
        return None if argument is None else [_Site(var, index, argument)]

    def _safe_argument(
        self, parameter: Any, call: Any, kernel: tirx.PrimFunc, index: int
    ) -> int | None:
        """The position of the kernel's argument that a result may overwrite.

        None if the kernel does not read `parameter` exactly once, or may not overwrite it.
        """
        arguments = list(call.args[1].fields)
        source = self.aliases.values[parameter].source
        positions = [
            position for position, value in enumerate(arguments) if self._source(value) == source
        ]
        ty = call.ty.fields[index] if isinstance(call.ty, relax.TupleType) else call.ty
        # Passed twice, the parameter would also be read through another buffer of the kernel.
        if len(positions) != 1 or not _same_tensor_type(parameter.ty, ty):
            return None
        donated, output = kernel.params[positions[0]], kernel.params[len(arguments) + index]
        return positions[0] if may_overwrite(kernel, donated, output) else None

    def _source(self, argument: Any) -> Any:
        """The source of an argument's memory, as in `Leaf`; None of what is no single tensor."""
        tree = self.aliases.values.get(argument) if isinstance(argument, tvm.ir.Var) else None
        return tree.source if isinstance(tree, Leaf) else None

    def _is_last_use(self, site: _Site, donated: Leaf, outputs: set[Any]) -> bool:
        """Whether each use of the donated memory after a call is a use of the output."""
        uses = self.aliases.uses_of(self.aliases.region(donated))
        uses_here = [use for use in uses if use.binding.same_as(site.var)]
        # The call itself may use the memory once: a second argument in it could be read too late.
        return len(uses_here) == 1 and all(
            use.position <= uses_here[0].position
            or use.excludes(uses_here[0].path)
            or any(use.value.same_as(output) for output in outputs)
            for use in uses
        )

    def _kernel(self, value: Any) -> tirx.PrimFunc | None:
        """The kernel that a value calls by `call_tir`, without symbolic arguments; else None."""
        return self.mod[value.args[0]] if is_kernel_call(value) else None

    def _rewrite(self, accepted: dict[Any, dict[int, int]], granted: list[list[int]]) -> list[Any]:
        """Put calls that write over arguments into the function; as `apply`.

        Parameters
        ----------
        accepted : dict
            From the variable of a call, the argument that each of its results is written over.
        granted : list of [int, int]
            The granted pairs.
        """
        calls = [self.aliases.calls[var] for var in accepted]
        replaced = {
            var: self._in_place(call, results)
            for call, (var, results) in zip(calls, accepted.items(), strict=True)
        }

        def in_place(binding: Any) -> list[Any]:
            if binding.var not in replaced:
                return [binding]
            return [relax.VarBinding(binding.var, replaced[binding.var], binding.span)]

        func = replace_body(self.func, rebuilt(self.func.body, in_place)) if replaced else self.func
        self._builder.update_func(self.name, func.with_attr(DONATED_DONE, granted))
        return [call.args[0] for call in calls]

    def _in_place(self, call: Any, results: dict[int, int]) -> Any:
        """A call with some of its results written over arguments."""
        kernel = self._kernel(call)
        assert kernel is not None
        arguments = len(call.args[1].fields)
        shared = {
            kernel.params[arguments + result]: kernel.params[argument]
            for result, argument in results.items()
        }
        overwriting_kernel = overwriting(kernel, shared)
        name = self._builder.add_func(overwriting_kernel, f"{call.args[0].name_hint}_in_place")
        types = result_types(call.ty)
        # To `call_tir_inplace`, -1 is a result in memory of its own.
        indices = [results.get(result, -1) for result in range(len(types))]
        types = types if len(types) > 1 else types[0]
        in_place = relax.op.call_tir_inplace(name, call.args[1], indices, types)
        return self._builder.normalize(in_place)


def _is_called(mod: tvm.IRModule, name: Any) -> bool:
    """Whether any Relax function of a module mentions another one."""
    return any(
        called.same_as(name)
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for called in nodes_in(func.body, tvm.ir.GlobalVar)
    )


def _has_known_memory(ty: Any) -> bool:
    """Whether a kernel can compare the addresses of values of a type; shapes have none."""
    if isinstance(ty, relax.TupleType):
        return all(map(_has_known_memory, ty.fields))
    if isinstance(ty, relax.TensorType):
        return ty.ndim >= 0 and ty.dtype is not None
    return isinstance(ty, relax.ShapeType | tvm.ir.PrimType)


def _requested(name: Any, func: relax.Function, outputs: int) -> list[tuple[int, int]]:
    """The pairs (parameter, output) that a function asks for, checked.

    Raises
    ------
    ArgumentError
        As `donate`.
    """
    where = f"the attribute {DONATED} of {name.name_hint}"
    try:
        pairs = [(int(p), int(o)) for p, o in func.attrs[DONATED]]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{where} must be a list of [parameter index, flat output index], got "
            f"{func.attrs[DONATED]}"
        ) from error
    for kind, numbers, count in (
        ("parameter", [p for p, _ in pairs], len(func.params)),
        ("output", [o for _, o in pairs], outputs),
    ):
        for number in numbers:
            if not 0 <= number < count:
                raise ArgumentError(f"{where} names {kind} {number} of {count}")
            if numbers.count(number) > 1:
                raise ArgumentError(f"{where} names {kind} {number} twice; name each once")
    return pairs


def _flatten(tree: Tree) -> list[Leaf | None]:
    """All leaves of a tree in order, also those that have no memory."""
    if isinstance(tree, list):
        return [leaf for branch in tree for leaf in _flatten(branch)]
    return [tree]


def _member(tree: Tree, path: list[int]) -> Any:
    """The member of a tree at an index into nested tuples."""
    for index in path:
        tree = tree[index]
    return tree


def _same_tensor_type(a: Any, b: Any) -> bool:
    """Whether two types are tensors of certainly equal shape and dtype."""
    return (
        isinstance(a, relax.TensorType)
        and isinstance(b, relax.TensorType)
        and a.shape is not None
        and tvm_ffi.structural_equal(a, b, map_free_vars=False)
    )
