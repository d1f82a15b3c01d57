"""Joining of calls in a dataflow block: any two that a pass makes one of, where both may stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from ...ir.kernel_calls import bytes_of
from .entries import Call, Entry, Readers, bindings_of, entries_of

_MIN_SHARED_BYTES = 1 << 16
"""Bytes of a tensor from which on it is worth moving it one time less."""

Join = Callable[[Call, Call, Callable[[Any], bool]], Call | None]
"""One call in the place of two; None if they are not joined.

The second may read results of the first. The function says whether anything but the two reads a
result of the first.
"""


def joined_calls(
    bindings: Sequence[Any], join: Join, builder: relax.BlockBuilder, distance: int
) -> list[Any]:
    """The bindings of a block, with calls joined that read the same or one the other's results.

    Parameters
    ----------
    bindings : sequence of Binding
    join : function
    builder : BlockBuilder
    distance : int
        Entries between two calls that become one, at most: what the first reads or writes lives
        longer.
    """
    return _Block(bindings, join, builder, distance).joined()


class _Block:
    """The bindings of a dataflow block, in which calls are joined.

    They are kept as entries: a call of one kernel with all bindings of its results, or one binding
    of anything else.
    """

    def __init__(
        self, bindings: Sequence[Any], join: Join, builder: relax.BlockBuilder, distance: int
    ):
        self._join, self._builder, self._distance = join, builder, distance
        self._entries = entries_of(bindings)
        self._readers = Readers(self._entries)

    def joined(self) -> list[Any]:
        """The bindings, with calls joined."""
        position = 0
        while position < len(self._entries):
            position = (
                self._fuse_with_earlier(position) if self._entries[position].call else position + 1
            )
        return [binding for entry in self._entries for binding in entry.bindings]

    def _fuse_with_earlier(self, position: int) -> int:
        """Join a call with one before it, if there is one; return the next position to try.

        A joint call is tried again itself: it may join with a third one before it.
        """
        later_entry = self._entries[position]
        assert later_entry.call is not None
        for earlier_position in range(position - 1, max(position - 1 - self._distance, -1), -1):
            earlier_entry = self._entries[earlier_position]
            if earlier_entry.call is None or not _may_pay(earlier_entry, later_entry):
                continue
            target = self._joint_position(earlier_position, position)
            if target is None:
                continue
            call = self._join(
                earlier_entry.call,
                later_entry.call,
                lambda result: self._readers.is_read_beside(result, later_entry),
            )
            if call is not None:
                joint_entry = Entry.of(call, bindings_of(call, self._builder))
                self._readers.replace((earlier_entry, later_entry), joint_entry)
                self._entries[target] = joint_entry
                del self._entries[earlier_position if target == position else position]
                # The deleted entry was in front of the joint one if that is at the later position.
                return target if target == earlier_position else target - 1
        return position + 1

    def _joint_position(self, first: int, second: int) -> int | None:
        """The position at which both of two entries may stand; None if there is none.

        What stands between them must not read results of the first, which moves down, or must not
        make what the second reads, which moves up.
        """
        between = self._entries[first + 1 : second]
        if not any(self._entries[first].makes & entry.reads for entry in between):
            return second
        if not any(self._entries[second].reads & entry.makes for entry in between):
            return first
        return None


def _may_pay(earlier: Entry, later: Entry) -> bool:
    """Whether joining may pay: the later call reads a result of the earlier, or both read much."""
    shared = earlier.reads & later.reads
    return bool(earlier.makes & later.reads) or any(
        (bytes_of(var.ty) or 0) >= _MIN_SHARED_BYTES for var in shared
    )
