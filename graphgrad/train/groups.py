"""Parameter groups: parameters that train with settings of the optimizer of their own."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .optimizer import Optimizer

RATE_SCALE = "learning_rate_scale"

_OF_THE_WHOLE = ("learning_rate", "groups", "clip_value", "clip_norm")
"""Settings that hold for all parameters together, which no group can change."""


@dataclass(frozen=True)
class Group:
    """Some parameters and their settings; made by `group`.

    Attributes
    ----------
    patterns : tuple of str
        Names, or patterns of names such as ``"*.bias"``.
    max_rank : int or None
    settings : tuple of (str, value)
    """

    patterns: tuple[str, ...]
    max_rank: int | None
    settings: tuple[tuple[str, Any], ...]

    def has(self, name: str, rank: int) -> bool:
        """Whether a parameter belongs to the group."""
        by_rank = self.max_rank is not None and rank <= self.max_rank
        return by_rank or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)


def group(*patterns: str, max_rank: int | None = None, **settings: Any) -> Group:
    """Describe parameters that train with settings of their own.

    Parameters
    ----------
    *patterns : str
        Names of parameters, or patterns with ``*`` and ``?``.
    max_rank : int, optional
        Also take every parameter of at most this rank: with 1, biases and the scales and shifts of
        norms.
    **settings
        Settings of the optimizer that differ, such as ``weight_decay=0.0``; and
        ``learning_rate_scale``, a factor on the learning rate.

    Returns
    -------
    Group
        For ``groups=[...]`` of an optimizer; a parameter has the settings of the first group that
        takes it.

    Raises
    ------
    ArgumentError
        Nothing is selected, or nothing is set.

    Examples
    --------
    >>> gg.optim.AdamW(1e-3, groups=[gg.optim.group(max_rank=1, weight_decay=0.0)])
    """
    if not patterns and max_rank is None:
        raise ArgumentError("a group needs names, patterns or max_rank")
    if max_rank is not None and (not isinstance(max_rank, int) or max_rank < 0):
        raise ArgumentError(f"max_rank={max_rank!r} must be a whole number, at least 0")
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"the names of a group must be text, given {patterns!r}")
    if not settings:
        raise ArgumentError("a group needs a setting that differs, such as weight_decay=0.0")
    return Group(patterns, max_rank, tuple(sorted(settings.items())))


def check_groups(optimizer: Optimizer) -> None:
    """Raise unless an optimizer's groups have settings that it knows, with good values.

    Raises
    ------
    ArgumentError
    """
    for member in optimizer.groups:
        if not isinstance(member, Group):
            raise ArgumentError(f"groups: {member!r} is no group; use graphgrad.optim.group")
        name = type(optimizer).__name__
        settable = {setting_field.name for setting_field in dataclasses.fields(optimizer)} - set(
            _OF_THE_WHOLE
        )
        unknown = [
            setting for setting, _ in member.settings if setting not in settable | {RATE_SCALE}
        ]
        if unknown:
            raise ArgumentError(
                f"{name}: a group cannot set {unknown}; it can set {sorted(settable)} and "
                f"{RATE_SCALE}"
            )
        scale = dict(member.settings).get(RATE_SCALE, 1.0)
        group_optimizer, _ = _apply_settings(optimizer, member)
        dataclasses.replace(group_optimizer, learning_rate=scale)  # its check is that of a rate
        # A step takes each slot for all parameters, whatever their group.
        if group_optimizer.slots.keys() != optimizer.slots.keys():
            raise ArgumentError(
                f"{name}: a group cannot change which buffers are kept: {sorted(optimizer.slots)} "
                f"for the optimizer, {sorted(group_optimizer.slots)} for the group"
            )


def by_parameter(
    optimizer: Optimizer, ranks: Mapping[str, int]
) -> dict[str, tuple[Optimizer, float]]:
    """For each parameter the optimizer with its settings, and the scale of its rate.

    Parameters
    ----------
    optimizer : Optimizer
    ranks : mapping of str to int
        The parameters that train.

    Raises
    ------
    ArgumentError
        A pattern takes none of the parameters.
    """
    for member in optimizer.groups:
        for pattern in member.patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in ranks):
                raise ArgumentError(
                    f"the group pattern {pattern!r} takes none of the parameters that train: "
                    f"{list(ranks)}"
                )
    settings_of_parameter = {}
    for name, rank in ranks.items():
        first_match = next((g for g in optimizer.groups if g.has(name, rank)), None)
        settings_of_parameter[name] = (
            _apply_settings(optimizer, first_match) if first_match else (optimizer, 1.0)
        )
    return settings_of_parameter


def _apply_settings(optimizer: Optimizer, member: Group) -> tuple[Optimizer, float]:
    """The optimizer with a group's settings, and the group's factor on the learning rate."""
    settings = dict(member.settings)
    scale = settings.pop(RATE_SCALE, 1.0)
    return dataclasses.replace(optimizer, groups=(), **settings), scale
