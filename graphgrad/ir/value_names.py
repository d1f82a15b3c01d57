"""Names that a function's values had before bindings of equal values were merged.

An ``Identity``, or a dropout for inference, computes nothing: after simplification only one name of
a binding ``y = x`` is left. The others are recorded in an attribute of the function, so that a user
may still ask for a gradient by any name in the ONNX file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tvm import relax

ALIASES = "graphgrad.aliases"
"""Attribute of a Relax function: from names that no binding has to the name of the equal value."""


def equal_names(function: relax.Function) -> list[list[str]]:
    """The groups of names whose values are equal by bindings that compute nothing.

    A name that several variables have belongs to no group.
    """
    count = _counts(function)
    sources: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            source = _source(getattr(binding, "value", None), sources)
            if source is not None:
                sources[binding.var] = source
    groups: dict[Any, list[str]] = {}
    for var, source in sources.items():
        if isinstance(source, relax.Var):
            groups.setdefault(source, [source.name]).append(var.name)
    all_groups = [*groups.values(), *map(list, name_aliases_of(function).items())]
    return [[name for name in group if count[name] <= 1] for group in all_groups]


def record_aliases(function: relax.Function, groups: list[list[str]]) -> relax.Function:
    """The function with an alias for each name of `groups` that no binding has."""
    count = _counts(function)
    aliases: dict[str, str] = {}
    for group in _merge_groups(groups):
        bound_name = next((name for name in group if count[name] == 1), None)
        if bound_name is not None:
            aliases.update({name: bound_name for name in group if not count[name]})
    if not aliases:
        return function.without_attr(ALIASES) if name_aliases_of(function) else function
    return function.with_attr(ALIASES, aliases)


def name_aliases_of(function: relax.Function) -> Mapping[str, str]:
    """The aliases that a function carries."""
    attribute = (function.attrs or {}).get(ALIASES, {})
    return {str(old): str(new) for old, new in attribute.items()}


def _counts(function: relax.Function) -> Counter[str]:
    """The number of variables of each name."""
    variables = [*function.params]
    for block in function.body.blocks:
        variables += [binding.var for binding in block.bindings]
    return Counter(var.name for var in variables)


def _source(value: Any, sources: Mapping[Any, Any]) -> Any:
    """The variable or tuple that a value is another name of; None if it computes something."""
    if isinstance(value, relax.Var):
        return sources.get(value, value)
    if isinstance(value, relax.Tuple):
        return value
    if isinstance(value, relax.TupleGetItem):
        tuple_source = sources.get(value.tuple_value, value.tuple_value)
        if isinstance(tuple_source, relax.Tuple):
            return _source(tuple_source.fields[value.index], sources)
    return None


def _merge_groups(groups: list[list[str]]) -> list[list[str]]:
    """Merge the groups that share a name."""
    leader: dict[str, str] = {}  # union-find: from a name to another one of its group

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            leader[name] = name = leader[leader[name]]  # path halving
        return name

    for group in groups:
        for name in group:
            leader[find(name)] = find(group[0])
    joined: dict[str, list[str]] = {}
    for name in leader:
        joined.setdefault(find(name), []).append(name)
    return list(joined.values())
