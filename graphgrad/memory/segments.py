"""Cuts of a program into segments, by what is held and by what each needs when it is repeated.

Of all cuts whose segments fit into a given size, those that hold the fewest bytes are found by
dynamic programming. There are two measures of what fits beside the bytes that are held:

- a segment's results that later steps read;
- these as they are read, with what else is in use meanwhile: gradients that wait for the update,
  and those on their way.

By the second, large segments are cut where they meet large gradients. But it takes a segment to be
repeated whole before the first of its results is read, so that neither is always better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .rematerialize import Program

_MOST_STARTS = 256
"""At how many steps a segment may begin."""

_MOST_SPANS = 512
"""Into how many spans the steps from the turn on are grouped."""

_UNREACHABLE = np.iinfo(np.int64).max // 4


class _Measure(NamedTuple):
    """What a segment takes.

    Attributes
    ----------
    inside : ndarray
        [i, j]: the bytes of a segment from the i-th start up to the j-th, by itself.
    most : int
        The bytes with a single segment.
    """

    inside: np.ndarray
    most: int


class Segments:
    """The cuts of a program's steps up to the turn into segments.

    A *late* tensor is one of a step up to the turn that may be repeated, and is read behind it.

    Attributes
    ----------
    late_bytes : list of int
        For each step up to the turn, the bytes of its late tensors.
    """

    def __init__(self, program: Program):
        turn = program.turn
        self._producer = {
            tensor: step for tensor, step in enumerate(program.producer) if 0 <= step <= turn
        }
        self._last_read = dict(self._producer)
        late: dict[int, tuple[int, int]] = {}  # the first and the last position of a late read
        for position, step in enumerate(program.steps):
            for tensor in step.reads:
                if tensor not in self._producer:
                    continue
                if position <= turn:
                    self._last_read[tensor] = position
                else:
                    late[tensor] = late.get(tensor, (position,))[0], position
        self.late_bytes = [0] * (turn + 1)
        for tensor in late:
            self.late_bytes[self._producer[tensor]] += program.sizes[tensor]
        crossing = np.zeros(turn + 2, dtype=np.int64)
        for tensor, producer in self._producer.items():
            crossing[producer + 1] += program.sizes[tensor]
            crossing[self._last_read[tensor] + 1] -= program.sizes[tensor]
        self._starts = starts = _least_of_each(crossing.cumsum()[:-1], _MOST_STARTS)
        # [i, j]: the bytes written between two starts and read behind the second. Each tensor
        # counts in a rectangle: i up to where it is written, j from there to its last read.
        held = np.zeros((len(starts) + 1, len(starts) + 1), dtype=np.int64)
        for tensor, producer in self._producer.items():
            size = program.sizes[tensor]
            begin, end = np.searchsorted(starts, [producer, self._last_read[tensor]], side="right")
            held[0, begin] += size
            held[0, end] -= size
            held[begin, begin] -= size
            held[begin, end] += size
        self._held = held.cumsum(0).cumsum(1)
        bytes_before = np.cumsum([0, *self.late_bytes])[[*starts, turn + 1]]
        whole = program.whole.least_bytes
        alone, in_use = bytes_before - bytes_before[:, None], self._bytes_in_use(program, late)
        self._measures = [_Measure(alone, int(bytes_before[-1])), _Measure(in_use, whole)]

    def _bytes_in_use(self, program: Program, late: dict[int, tuple[int, int]]) -> np.ndarray:
        """[i, j]: the most bytes in use while late tensors of steps between two starts are read.

        Late tensors of other steps do not count. Of the last segment, it is from the turn on.
        """
        turn, sizes, starts = program.turn, program.sizes, self._starts
        in_use = program.whole.in_use[turn : len(program.steps)].copy()
        for tensor, (_, last) in late.items():
            in_use[: last - turn + 1] -= sizes[tensor]
        begins = np.unique(np.linspace(0, len(in_use), _MOST_SPANS + 1, dtype=np.int64)[:-1])
        rest = np.maximum.reduceat(in_use, begins)
        # [i, span]: the bytes of late tensors of steps from the start i on that are still read.
        kept = np.zeros((len(starts) + 1, len(begins)), dtype=np.int64)
        first_span = np.full(len(starts) + 1, len(begins))
        last_span = np.full(len(starts) + 1, -1)
        for tensor, (first, last) in late.items():
            segment = int(np.searchsorted(starts, self._producer[tensor], side="right")) - 1
            spans = np.searchsorted(begins, [first - turn, last - turn], side="right") - 1
            kept[segment, : spans[1] + 1] += sizes[tensor]
            first_span[segment] = min(first_span[segment], spans[0])
            last_span[segment] = max(last_span[segment], spans[1])
        kept = kept[::-1].cumsum(0)[::-1]
        inside = np.zeros((len(starts) + 1, len(starts) + 1), dtype=np.int64)
        span = np.arange(len(begins))
        for end in range(1, len(starts) + 1):
            begin = np.minimum.accumulate(first_span[:end][::-1])[::-1, None]
            if end == len(starts):
                begin = np.zeros_like(begin)
            stop = np.maximum.accumulate(last_span[:end][::-1])[::-1, None]
            is_read = (begin <= span) & (span <= stop)
            needed = np.where(is_read, kept[:end] - kept[end] + rest, 0)
            inside[:end, end] = needed.max(1)
        return inside

    def cuts(self, count: int) -> Iterator[tuple[set[int], int]]:
        """Yield, for `count` sizes by each measure, the steps that are held, and the last begin.

        Larger sizes, whose segments are fewer, come last.
        """
        for measure in self._measures:
            least = max(measure.inside.diagonal(1).max(), measure.most // 64)
            for size in np.geomspace(least, measure.most, count)[:-1] if least else ():
                cuts = self._cuts(measure.inside, int(size))
                if cuts:
                    held = {
                        step
                        for tensor, step in self._producer.items()
                        if any(step < cut <= self._last_read[tensor] for cut in cuts)
                    }
                    yield held, cuts[0]

    def _cuts(self, inside: np.ndarray, size: int) -> list[int]:
        """Where segments begin but the first, the last one first; empty if there is but one.

        A segment, with all that is held for it, takes at most `size` bytes; of such cuts it is
        those that hold the least.

        Parameters
        ----------
        inside : ndarray
            [i, j]: what a segment between two starts takes by itself.
        size : int
        """
        count = len(self._starts)
        held = np.full(count, _UNREACHABLE)
        held[0] = 0
        previous = [0] * count
        for end in range(1, count):
            fits = held[:end] + inside[:end, end] <= size
            totals = np.where(fits, held[:end] + self._held[:end, end], _UNREACHABLE)
            previous[end] = int(totals.argmin())
            held[end] = totals[previous[end]]
        fits = held + inside[:count, count] <= size
        cuts: list[int] = []
        start = int(fits.argmax())  # the first one: the longest last segment; 0 if nothing fits
        while start > 0:
            cuts.append(int(self._starts[start]))
            start = previous[start]
        return cuts


def _least_of_each(values: np.ndarray, count: int) -> np.ndarray:
    """The positions of the least of some values in each of at most `count` parts, and 0."""
    parts = np.array_split(values, min(count, len(values)))
    begins = np.cumsum([0, *map(len, parts[:-1])])
    least = begins + [int(part.argmin()) for part in parts]
    return np.union1d([0], least)
