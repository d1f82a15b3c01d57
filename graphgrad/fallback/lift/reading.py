"""Functions of TIR read as statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import prim
from tvm.s_tir import SBlock, SBlockRealize

from ...ir.visits import nodes_in
from ..constants import integer_value, is_true
from ..indices.linear_system import Axis
from ..walk import Expr, called, identity
from .statements import Branch, Load, Loop, RefusedError, Statement, Store, Write, loads, written
from .vectors import lane, lanes_of

_REDUCE_KIND = 2
"""The kind of a block's axis that is reduced over, as TVM numbers them."""

_EFFECT_FREE_CALLS = ("tirx.tvm_storage_sync", "tirx.assume", "tirx.prefetch")
_POINTERS = (
    "tirx.address_of",
    "tirx.tvm_access_ptr",
    "tirx.buffer_data",
    "tirx.handle_add_byte_offset",
)
_IGNORED_ATTRIBUTES = ("pragma_", "double_buffer", "async_", "software_pipeline", "storage_")


def statements_of(func: tirx.PrimFunc) -> list[Statement]:
    """The statements of a function, as reads and writes.

    Raises
    ------
    RefusedError
        It has a statement of a kind that no tensor expression stands for.
    """
    return _Reader().read(func.body)


class _Reader:
    """Statements in terms of loops, as those of a function are read from outside inwards."""

    def __init__(self) -> None:
        self.values: dict[int, Expr] = {}
        self.parts: dict[int, tuple[Any, list[Expr]]] = {}
        self.lows: dict[int, Expr] = {}
        self.block = "main"
        self.in_any_order = False
        self.initial = False

    def read(self, statement: Any) -> list[Statement]:
        """A statement as statements of the few kinds."""
        if isinstance(statement, tirx.SeqStmt):
            return self._sequence(list(statement.seq))
        if isinstance(statement, tirx.BufferStore | tirx.Bind):
            return self._sequence([statement])
        if isinstance(statement, tirx.For):
            return self._loop(statement)
        if isinstance(statement, tirx.AttrStmt):
            return self._attribute(statement)
        if isinstance(statement, SBlockRealize):
            return self._block(statement)
        if isinstance(statement, tirx.IfThenElse):
            return self._branches(statement)
        if isinstance(statement, tirx.Evaluate):
            return self._evaluated(statement.value)
        if isinstance(statement, tirx.AllocBuffer | tirx.AssertStmt):
            return []
        raise self._refused(_REASONS.get(type(statement).__name__, _unknown(statement)))

    def expression(self, expr: Expr) -> Expr:
        """An expression in terms of loops, reading from whole buffers."""
        if isinstance(expr, int):
            return expr

        def change(load: Any) -> Any:
            if identity(load.source) not in self.parts:
                return load
            buffer, offsets = self.parts[identity(load.source)]
            return tirx.BufferLoad(buffer, _moved(list(load.indices), offsets))

        changes = [
            (tvm.ir.Var, lambda var: self.values.get(identity(var), var)),
            (Load, change),
            (prim.Let, _inline_let),
        ]
        result = tvm_ffi.structural_map(expr, changes)
        calls = nodes_in(result, tvm.ir.Call)
        if any(called(call) in _POINTERS for call in calls):
            raise self._refused("it takes the address of an element, to do what is not seen")
        return result

    def _refused(self, reason: str) -> RefusedError:
        return RefusedError(reason, self.block)

    def _loop(self, loop: Any) -> list[Statement]:
        thread = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        low, extent = self.expression(loop.min), self.expression(loop.extent)
        step = 1 if loop.step is None else integer_value(loop.step)
        if step is None or step < 1:
            raise self._refused(f"the loop {loop.loop_var.name} has a step that is not known")
        if step == 1:
            return self._repeated(loop.loop_var, low, extent, loop.body, thread)
        counter = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty))
        self.values[identity(loop.loop_var)] = low + counter * step
        trips = tirx.floordiv(extent + (step - 1), step)
        return self._repeated(counter, tirx.const(0, str(low.ty)), trips, loop.body, thread)

    def _attribute(self, statement: Any) -> list[Statement]:
        key = str(statement.attr_key)
        if key == "thread_extent":
            iteration = statement.node
            zero = tirx.const(0, str(iteration.var.ty))
            extent = self.expression(statement.value)
            thread = str(iteration.thread_tag)
            return self._repeated(iteration.var, zero, extent, statement.body, thread)
        if key.startswith(_IGNORED_ATTRIBUTES):
            return self.read(statement.body)
        raise self._refused(f"the attribute {key} may change what its body means")

    def _repeated(
        self, var: Any, low: Expr, extent: Expr, body: Any, thread: str
    ) -> list[Statement]:
        """A loop; one of a single trip is none."""
        self.lows[identity(var)] = low
        if integer_value(extent) == 1:
            self.values[identity(var)] = low.astype(str(var.ty))
            return self.read(body)
        statements = self.read(body)
        self._check_unchanged([low, extent], statements, f"the range of the loop {var.name}")
        if not statements or integer_value(extent) == 0:
            return []
        return [Loop(Axis(var, low, extent), statements, threads=thread.startswith(_THREADS))]

    def _check_unchanged(
        self, exprs: Sequence[Expr], inner: Sequence[Statement], what: str
    ) -> None:
        if _reads_any(exprs, written(inner)):
            raise self._refused(f"{what} is read from a buffer that changes meanwhile")

    def _branches(self, statement: Any) -> list[Statement]:
        condition = self.expression(statement.condition)
        arms = [(True, self.read(statement.then_case))]
        if statement.else_case is not None:
            arms.append((False, self.read(statement.else_case)))
        prelude: list[Statement] = []
        # The condition is evaluated once, before an arm writes what it reads.
        if any(_reads_any([condition], written(body)) for _, body in arms):
            write, condition = self._kept("condition", condition)
            prelude = [write]
        return [*prelude, *(Branch((condition, way), body) for way, body in arms if body)]

    def _kept(self, name: str, value: Expr) -> tuple[Write, Expr]:
        """The statement that keeps a value in a buffer of its own, and its load."""
        is_condition = str(value.ty) == "bool"
        value = value.astype("int32") if is_condition else value
        zero = [tirx.const(0, "int32")]
        buffer = tirx.decl_buffer((1,), str(value.ty), name)
        load = tirx.BufferLoad(buffer, zero)
        write = Write([Store(buffer, zero, value)], self.block)
        return write, tirx.NE(load, zero[0]) if is_condition else load

    def _evaluated(self, value: Any) -> list[Statement]:
        name = called(value)
        if not name or name in _EFFECT_FREE_CALLS:
            return []
        function = value.args[0] if len(value.args) else None
        external = str(function.value) if isinstance(function, tvm.ir.StringImm) else ""
        if name == "tirx.atomic_add" or external == "atomicAdd":
            pointer, addend = value.args[-2:]
            load = pointer.args[0] if called(pointer) == "tirx.address_of" else None
            if isinstance(load, Load):
                return [self._added(self.expression(load), self.expression(addend))]
        raise self._refused(
            f"it calls {external or name.removeprefix('tirx.')}, and what that does to buffers is "
            "not known"
        )

    def _added(self, load: Any, addend: Expr) -> Write:
        store = Store(load.source, list(load.indices), load + addend)
        return Write([store], self.block, in_any_order=True, atomic=True)

    def _block(self, realize: Any) -> list[Statement]:
        block = realize.block
        saved = self.block, self.in_any_order
        self.block = str(block.name_hint) or self.block
        bindings = [self.expression(value) for value in realize.iter_values]
        for axis, value in zip(block.iter_vars, bindings, strict=True):
            self.values[identity(axis.var)] = value.astype(str(axis.var.ty))
        for part in block.match_buffers:
            self._add_part(part)
        # A block without axes promises nothing of its own: that of the one around counts.
        if len(block.iter_vars):
            self.in_any_order = any(int(a.iter_type) == _REDUCE_KIND for a in block.iter_vars)
        beginning = [] if block.init is None else self._initial(block, bindings)
        body = [*beginning, *self.read(block.body)]
        # They are put in at each use, so nothing in the body may change what they are read from.
        self._check_unchanged(bindings, body, "an axis of the block")
        condition = self.expression(realize.predicate)
        self._check_unchanged([condition], body, "the block's condition")
        self.block, self.in_any_order = saved
        return body if is_true(condition) or not body else [Branch((condition, True), body)]

    def _add_part(self, part: Any) -> None:
        """Take in the name of a part of a buffer."""
        source = part.source.source
        offsets = [self.expression(extent.min) for extent in part.source.region]
        if identity(source) in self.parts:
            source, around = self.parts[identity(source)]
            offsets = _moved(offsets, around)
        self.parts[identity(part.buffer)] = source, offsets

    def _initial(self, block: Any, bindings: Sequence[Expr]) -> list[Statement]:
        """What a block does first: at the first places of the axes it reduces over."""
        was_initial, self.initial = self.initial, True
        body = self.read(block.init)
        self.initial = was_initial
        analyzer = tvm.sym.Analyzer()
        for axis, value in zip(block.iter_vars, bindings, strict=True):
            if int(axis.iter_type) != _REDUCE_KIND:
                continue
            first = self.expression(axis.dom.min).astype(str(value.ty))
            if not self._begins(value, first):
                raise self._refused(
                    f"its loops do not begin at the first place of its reduce axis {axis.var.name}"
                )
            condition = analyzer.simplify(value.equal(first))
            if not is_true(condition):
                body = [Branch((condition, True), body)]
        return body

    def _begins(self, value: Expr, first: Expr) -> bool:
        """Whether the loops begin where a value is the first."""
        difference = value - first
        # A low end may depend on loops further out, so it takes up to one step per loop.
        for _ in range(len(self.lows) + 1):
            difference = tvm.sym.Analyzer().simplify(difference)
            if integer_value(difference) is not None:
                break
            difference = tvm_ffi.structural_map(
                difference, (tvm.ir.Var, lambda var: self.lows.get(identity(var), var))
            )
        return integer_value(difference) == 0

    def _sequence(self, parts: Sequence[Any]) -> list[Statement]:
        """Statements in order; values that are bound to names are for those behind."""
        simultaneous = self._simultaneous(parts)
        if simultaneous is not None:
            return simultaneous
        result: list[Statement] = []
        for number, part in enumerate(parts):
            if isinstance(part, tirx.Bind):
                result += self._bound(part, parts[number + 1 :])
            elif isinstance(part, tirx.BufferStore):
                result += self._stored([part])
            else:
                result += self.read(part)
        return result

    def _bound(self, bind: Any, behind: Sequence[Any]) -> list[Statement]:
        """Give a name a value; if buffers that it is read from change, keep it in its own."""
        value = self.expression(bind.value)
        if _reads_any([value], _stored_in(behind, self.parts)):
            write, value = self._kept(str(bind.var.name), value)
            self.values[identity(bind.var)] = value
            return [write]
        self.values[identity(bind.var)] = value
        return []

    def _simultaneous(self, parts: Sequence[Any]) -> list[Statement] | None:
        """Stores of values that are bound before them all; None if it is not that."""
        count = sum(isinstance(part, tirx.Bind) for part in parts)
        binds, stores = parts[:count], parts[count:]
        if not count or len(stores) < 2 or not all(isinstance(b, tirx.Bind) for b in binds):
            return None
        if not all(isinstance(store, tirx.BufferStore) for store in stores):
            return None
        stored: dict[int, Any] = {}
        for store in stores:  # one must not read, but through the names, what another has written
            if _reads_any([store.value, *store.indices], stored):
                return None
            stored[identity(self._whole(store.buffer))] = store.buffer
        # Two stores to one buffer have an order.
        if len(stored) < len(stores):
            return None
        for bind in binds:
            self.values[identity(bind.var)] = self.expression(bind.value)
        return self._stored(stores)

    def _whole(self, buffer: Any) -> Any:
        return self.parts[identity(buffer)][0] if identity(buffer) in self.parts else buffer

    def _stored(self, stores: Sequence[Any]) -> list[Statement]:
        """Stores at once; each lane of a vector is stored by itself."""
        lanes = lanes_of(stores[0])
        if lanes == 1:
            return [self._write([self._store(store) for store in stores], stores[0])]
        if len(stores) > 1:
            raise self._refused("several vectors are stored at once")
        axis = Axis(tirx.Var("lane", "int32"), tirx.const(0, "int32"), tirx.const(lanes, "int32"))
        store = self._store(stores[0], axis.var)
        return [Loop(axis, [self._write([store], stores[0])], lanes=True)]

    def _write(self, stores: list[Store], source: Any) -> Write:
        return Write(stores, self.block, self.in_any_order, self.initial, source=source)

    def _store(self, store: Any, number: Any = None) -> Store:
        indices, value = list(map(self.expression, store.indices)), self.expression(store.value)
        if number is not None:
            indices, value = [lane(index, number) for index in indices], lane(value, number)
        buffer, offsets = self.parts.get(identity(store.buffer), (store.buffer, []))
        return Store(buffer, _moved(indices, offsets), value)


def _inline_let(let: Any) -> Expr:
    """The body of a `Let` with the value in place of its variable.

    TVM's substitutions take what is shared apart, and then bind one variable several times.
    """
    return tvm_ffi.structural_map(
        let.body, (tvm.ir.Var, lambda var: let.value if var.same_as(let.var) else var)
    )


_THREADS = ("threadIdx", "vthread")

_REASONS = {
    "While": "how often a while loop runs is not known before it runs",
    "Break": "it leaves a loop early",
    "Continue": "it leaves an iteration early",
    "Return": "it returns early",
    "DeclBuffer": "it declares a buffer over memory that may be another buffer's",
}


def _unknown(statement: Any) -> str:
    return f"a statement of the kind {type(statement).__name__} has no tensor expression"


def _moved(indices: list[Expr], offsets: Sequence[Expr]) -> list[Expr]:
    """Indices into a part as those into the whole, which may have more dimensions."""
    if not offsets:
        return indices
    extra = len(offsets) - len(indices)
    inside = [offset + index for offset, index in zip(offsets[extra:], indices, strict=True)]
    return [*offsets[:extra], *inside]


def _reads_any(exprs: Sequence[Expr], buffers: dict[int, Any]) -> bool:
    return any(identity(load.source) in buffers for load in loads(exprs))


def _stored_in(parts: Sequence[Any], views: dict[int, tuple[Any, list[Expr]]]) -> dict[int, Any]:
    """The buffers that some statements of TIR write, by their identities."""
    buffers: dict[int, Any] = {}
    named = dict(views)

    for store in nodes_in(list(parts), tirx.BufferStore):
        written = store.buffer
        buffer = named[identity(written)][0] if identity(written) in named else written
        buffers[identity(buffer)] = buffer
    for block in nodes_in(list(parts), SBlock):
        # What has a part with a name counts as written, whatever is done with the part.
        for part in block.match_buffers:
            source = part.source.source
            buffers[identity(source)] = source
    return buffers
