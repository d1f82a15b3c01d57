"""Which tensors of a kernel are copies inside a border of zeros, for readers that do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .structure import Stage
from .winograd.pads import Border, border_of


def borders_of(
    found: Sequence[Stage], internal: Sequence[Any], blocks: Mapping[str, Any]
) -> dict[Any, Border]:
    """Return, by buffer, what the kernel's own copies with a border are copies of.

    A copy is left out if its source is stored to later on: then it has to be made.

    Parameters
    ----------
    found : sequence of Stage
        All of the kernel, in order.
    internal : sequence of Buffer
        Those of the kernel's own: what else is stored is read by the caller.
    blocks : dict
        The blocks (SBlockRealize) of the kernel, by name.
    """
    borders = {}
    for number, stage in enumerate(found):
        written = stage.stores[0].buffer
        if len(stage.stores) > 1 or not _is_among(written, internal):
            continue
        border = border_of(stage, blocks[stage.name])
        if border is not None and not _is_stored(border.source, found[number + 1 :]):
            borders[written] = border
    return borders


def _is_stored(buffer: Any, found: Sequence[Stage]) -> bool:
    return any(_is_among(buffer, [store.buffer for store in stage.stores]) for stage in found)


def _is_among(buffer: Any, buffers: Sequence[Any]) -> bool:
    return any(buffer.same_as(other) for other in buffers)
