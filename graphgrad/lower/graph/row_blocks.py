"""Scores of a vocabulary, and their gradient, by blocks of rows: they are never there whole.

The head of a language model multiplies its rows by a weight, and the loss reads the scores row by
row. Between the product and the two that end the gradient, of the rows and of the weight, nothing
but rows of scores depends on rows of scores:

    scores = x wᵀ       loss = Σ f(scores)       ḡ = f′(scores)       x̄ = ḡ w       w̄ = ḡᵀ x

So each block of rows is taken through all of that, backwards too, before the next one begins. x̄ is
put together from its blocks, w̄ is added up in place, which `memory/donation.py` sees to. Nothing is
computed twice. (The vocabulary could be cut as well, but its softmax needs all of a row, so that
scores would be computed twice.)

What is between is recognized by what it does to rows, not by what it is: losses of any form, masks,
biases, temperatures. Sums over rows end it, as w̄ does.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tvm
from tvm import relax, te, topi

from ...ir.calls import RESHAPES, calls_op
from ...ir.kernel_calls import INJECTIVE_PATTERN, is_kernel_call, uses_in, variables_of
from ...ir.kernel_structure import static, substitute_values
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import (
    leave_dataflow,
    map_functions,
    rebuilt,
    replace_bindings,
    replace_body,
)
from ...ir.tensor import accumulator_dtype, has_shape
from ...memory.donation import donated_params
from ...memory.effect_order import may_write
from ...ops.define import OPAQUE
from ...ops.elementwise import ELEMENTWISE
from .permuted_products import PERMUTATION, axes_of_permutation, strip_permutations

_MIN_CLASSES = 4096
"""Columns of scores from which on their memory counts."""

_MIN_ELEMENTS = 3 << 24
"""Scores in all from which on they are computed in blocks: 200 MB of float32."""

_BLOCK_ELEMENTS = 1 << 25
"""Scores of a block, at most."""

_MIN_BLOCK_ROWS = 128
"""Rows of a block, at least: the weight's gradient is read and written once for each block."""

_BEGINS = "graphgrad.begins_row_block"
"""Attribute of a kernel with which a block of rows begins, or what follows the last."""

_SOFTMAXES = {
    "relax.nn.log_softmax": relax.op.nn.log_softmax,
    "relax.nn.softmax": relax.op.nn.softmax,
}
_REDUCTIONS = {
    "relax.sum": relax.op.sum,
    "relax.mean": relax.op.mean,
    "relax.max": relax.op.max,
    "relax.min": relax.op.min,
}


class _Form(Enum):
    """What a value has for each row; a block of it has the shape."""

    WIDE = "a number for each class: (rows, classes)"
    COLUMN = "one number: (rows, 1)"
    VECTOR = "one number: (rows,)"
    OTHER = "numbers of something else: (rows, width)"


class _End(Enum):
    """How a result is made of those of all blocks."""

    ROWS = "they follow each other"
    SUM = "they are added up"
    LOSS = "they follow each other, and are reduced"


class _Unsuited(Exception):
    """The scores cannot be computed by blocks of rows."""


@dataclass(frozen=True)
class _Rule:
    """How a call is computed for a block of rows.

    Attributes
    ----------
    result : _Form or _End
        What it has for each row, or how the results of blocks are put together.
    operands : list of (Expr, _Form or None)
        The tensors that it reads, with what each has for each row; None: it is read whole.
    call : callable
        From a function that binds a value, and the operands of a block, to the block's value.
    """

    result: _Form | _End
    operands: list[tuple[Any, _Form | None]]
    call: Callable[..., Any]


@compiler_pass(
    Phase.GRAPH,
    targets=("llvm",),
    before={
        "fold_permutations": "until then products of permuted operands are ops",
        "accumulate_early": "what is added to the gradient of a weight is added to its last sum",
    },
)
def compute_in_row_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """Compute scores of a vocabulary, and what is derived from them, by blocks of rows.

    Only where nothing else reads the scores, and in functions that may overwrite: others would not
    add up the weight's gradient in place.
    """
    builder = relax.BlockBuilder(mod)

    def changed(_: Any, func: relax.Function) -> relax.Function:
        if not donated_params(func) or may_write(func.body):
            return func
        blocks = [_in_row_blocks(builder, func, block) for block in func.body.blocks]
        return replace_body(func, relax.SeqExpr(blocks, func.body.body, func.body.span))

    return map_functions(mod, changed, builder)


def _in_row_blocks(builder: Any, func: relax.Function, block: Any) -> Any:
    """A block of bindings; of the first scores in it that can be, all by blocks of rows."""
    if not isinstance(block, relax.DataflowBlock):
        return block
    for number, binding in enumerate(block.bindings):
        if calls_op(binding.value, "relax.matmul") and _block_rows(binding.var.ty):
            try:
                cluster = _Cluster(func, block.bindings, number)
            except _Unsuited:
                continue
            return replace_bindings(block, _Writer(builder, cluster).bindings())
    return block


def _block_rows(ty: Any) -> int:
    """How many rows of scores make a block; 0 if these are not to be computed in blocks."""
    extents = _extents(ty)
    if len(extents) < 2:
        return 0
    *lead, classes = extents
    rows = math.prod(lead)
    # A vector of as many numbers as there are rows has one for each of them.
    if classes < _MIN_CLASSES or rows * classes < _MIN_ELEMENTS or rows == classes:
        return 0
    least = -(-rows * classes // _BLOCK_ELEMENTS)
    size = next((rows // n for n in range(least, rows + 1) if rows % n == 0), 0)
    return size if size >= _MIN_BLOCK_ROWS else 0


def _extents(ty: Any) -> list[int]:
    """The shape of a tensor; empty if it is not known."""
    if not has_shape(ty):
        return []
    extents = [static(extent) for extent in ty.shape.values]
    return [] if None in extents else extents  # type: ignore[return-value]


@compiler_pass(
    Phase.KERNELS,
    targets=("llvm",),
    after={"recompute_maps": "it copies maps for readers of the same dataflow block"},
    before={"FuseOps": "it would join blocks of rows, and move what ends them behind the last"},
)
def part_row_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """Make each block of rows a dataflow block: nothing of it is fused with others, or waits."""

    def parted(block: Any) -> list[Any]:
        starts = [n for n, binding in enumerate(block.bindings) if _begins(mod, binding)]
        if not starts or not isinstance(block, relax.DataflowBlock):
            return [block]
        cuts = [0, *starts, len(block.bindings)]
        return [
            relax.DataflowBlock(block.bindings[start:end], block.span)
            for start, end in itertools.pairwise(cuts)
            if start < end
        ]

    def changed(_: Any, func: relax.Function) -> relax.Function:
        body = rebuilt(func.body, block=parted)
        if len(body.blocks) == len(func.body.blocks):
            return func
        blocks = _with_late_maps(mod, list(body.blocks))
        homes = {b.var: number for number, block in enumerate(blocks) for b in block.bindings}
        crossing = {
            var
            for number, block in enumerate(blocks)
            for binding in block.bindings
            for var in variables_of(binding.value)
            if homes.get(var, number) != number
        }
        body = relax.SeqExpr(blocks, body.body, body.span)
        return leave_dataflow(replace_body(func, body), lambda b: b.var in crossing)

    return map_functions(mod, changed)


def _with_late_maps(mod: tvm.IRModule, blocks: list[Any]) -> list[Any]:
    """Dataflow blocks in which maps in front of blocks of rows are where they are read.

    In front of its only reader a map is fused with it; and what only reshapes a tensor is a view of
    it only inside of a dataflow block, so that each block has its own.
    """
    reading: defaultdict[Any, set[int]] = defaultdict(set)  # by variable, the numbers of blocks
    late: list[dict[Any, Any]] = [{} for _ in blocks]
    moved: set[Any] = set()
    for number, block in reversed(list(enumerate(blocks))):
        is_before = bool(block.bindings) and not _begins(mod, block.bindings[0])
        for binding in reversed(block.bindings):
            var, homes = binding.var, {number}
            others = reading[var] - homes if is_before else set()
            if others and isinstance(var, relax.DataflowVar) and _is_map(mod, binding.value):
                is_view = relax.analysis.has_reshape_pattern(mod[binding.value.args[0]])
                if is_view or len(reading[var]) == 1:
                    homes = reading[var]
                    for other in others:
                        late[other][var] = binding
                    if number not in homes:
                        moved.add(var)
            for read in variables_of(binding.value):
                reading[read] |= homes
    return [_with_late(block, late[n], moved) for n, block in enumerate(blocks)]


def _with_late(block: Any, late: dict[Any, Any], moved: set[Any]) -> Any:
    """A dataflow block without what has moved, and with its own copies in front of their readers.

    Parameters
    ----------
    block : relax.DataflowBlock
    late : dict
        The bindings that it gets, by variable.
    moved : set of relax.Var
        Those that no block keeps where they were.
    """
    own = {var: relax.DataflowVar(var.name, var.ty) for var in late}
    bindings: list[Any] = []

    def append(binding: Any, var: Any) -> None:
        for read in variables_of(binding.value):
            if read in late:
                append(late.pop(read), own[read])
        value = substitute_values(binding.value, own) if own else binding.value
        bindings.append(relax.VarBinding(var, value, binding.span))

    for binding in block.bindings:
        if binding.var not in moved:
            append(binding, binding.var)
    return replace_bindings(block, bindings)


def _begins(mod: tvm.IRModule, binding: Any) -> bool:
    """Whether a block of rows begins with a binding, or what follows the last."""
    call = binding.value
    return is_kernel_call(call) and _BEGINS in (mod[call.args[0]].attrs or {})


def _is_map(mod: tvm.IRModule, value: Any) -> bool:
    """Whether a value is a kernel's that TVM fuses with what reads it."""
    pattern = (mod[value.args[0]].attrs or {}).get("op_pattern") if is_kernel_call(value) else None
    return pattern is not None and int(pattern) <= INJECTIVE_PATTERN


class _Cluster:
    """All that is to be computed by blocks of rows: from scores to where their rows end.

    Parameters
    ----------
    func : relax.Function
    bindings : sequence of Binding
        Of one dataflow block.
    start : int
        The number of the binding of the scores.

    Attributes
    ----------
    bindings : list of Binding
    rows, classes, block_rows : int
    members : dict
        The rules of what depends on the scores, by variable, in order.
    copied : dict
        The same of what does not, but has as many elements. Others may read it too.
    read_outside : dict
        The bindings of those members that others read.
    views : set of relax.Var
        Permuted members, which only members read.
    position : int
        The number of the binding in front of which all is computed.
    late : set of relax.Var
        What is bound in front of that, and is computed from results: the loss, for one.

    Raises
    ------
    _Unsuited
    """

    def __init__(self, func: relax.Function, bindings: Sequence[Any], start: int):
        product = bindings[start]
        *lead, self.classes = _extents(product.var.ty)
        self.bindings, self.rows = list(bindings), math.prod(lead)
        self.block_rows = _block_rows(product.var.ty)
        self._bound = {binding.var: binding.value for binding in bindings}
        self._uses = uses_in(func)
        self.members: dict[Any, _Rule] = {}
        self.copied: dict[Any, _Rule] = {}
        self.read_outside: dict[Any, Any] = {}
        self._inputs: set[Any] = set()
        self.views: set[Any] = set()
        self.late: set[Any] = set()
        self._take(product.var, self._scores(product.value), self.members)
        for binding in bindings[start + 1 :]:
            self._follow(binding)
        self._check_ends(func.body.body)
        inputs = [number for number, each in enumerate(bindings) if each.var in self._inputs]
        self.position = max([start, *(number + 1 for number in inputs)])
        own = self.members.keys() | self.views
        for binding in bindings[: self.position]:
            read = variables_of(binding.value)
            if binding.var not in own and any(var in own or var in self.late for var in read):
                self.late.add(binding.var)
        if not self.late.isdisjoint(self._inputs):
            raise _Unsuited  # what a block reads depends on what all blocks result in

    def form(self, ty: Any) -> _Form | None:
        """What a value of a type has for each row, going by its shape."""
        extents = _extents(ty)
        count = math.prod(extents)
        if not extents or count % self.rows:
            return None
        if extents[-1] == self.classes and count == self.rows * self.classes:
            return _Form.WIDE
        if count == self.rows:
            return _Form.COLUMN if len(extents) > 1 and extents[-1] == 1 else _Form.VECTOR
        return _Form.OTHER if count == self.rows * extents[-1] else None

    def _follow(self, binding: Any) -> None:
        """Make a binding that reads members one of them, or note which of them are results."""
        var, value = binding.var, binding.value
        read = [each for each in variables_of(value) if each in self.members or each in self.views]
        if not read:
            return
        if calls_op(value, PERMUTATION) and self._is_wide(value.args[0]):
            self.views.add(var)
            return
        rule = self._permuted_sum(value) or self._rule(value)
        if rule is not None and all(map(self._has_form, *zip(*rule.operands, strict=True))):
            self._take(var, rule, self.members)
            return
        for each in read:
            if each in self.views or self.members[each].result == _Form.WIDE:
                raise _Unsuited
            self.read_outside[each] = self._bound[each]

    def _has_form(self, operand: Any, form: _Form | None) -> bool:
        """Whether an operand is no member, or has for each row what it is taken for.

        A shape alone tells nothing: as many features as rows, and the weight's gradient has that of
        scores.
        """
        return operand not in self.members or self.members[operand].result is form

    def _take(self, var: Any, rule: _Rule, taken: dict[Any, _Rule]) -> None:
        """Compute a variable for each block, and what its rule reads."""
        taken[var] = rule
        for operand, form in rule.operands:
            if operand in self.members or operand in self.copied:
                continue
            if form is _Form.WIDE:
                self._copy(operand)
            else:
                self._inputs.update(variables_of(operand))

    def _copy(self, var: Any) -> None:
        """Compute for each block, too, what is as large as the scores and does not depend on them.

        That is made of small tensors, and of it a block is made of blocks of those.
        """
        rule = self._rule(self._bound[var]) if var in self._bound else None
        if rule is None or rule.result is not _Form.WIDE or self._depends(self._bound[var]):
            raise _Unsuited
        self._take(var, rule, self.copied)

    def _check_ends(self, result: Any) -> None:
        """See to it that rows end, in sums too, and that none is a result of the function."""
        for var, rule in self.members.items():
            is_visible = not isinstance(var, relax.DataflowVar) or var in variables_of(result)
            if is_visible and rule.result is _Form.WIDE:
                raise _Unsuited
            if is_visible or rule.result is _End.ROWS:
                self.read_outside[var] = self._bound[var]
        if all(rule.result is not _End.SUM for rule in self.members.values()):
            raise _Unsuited  # they are not trained, and nothing is freed behind a block

    def _is_wide(self, expr: Any) -> bool:
        return expr in self.members and self.members[expr].result is _Form.WIDE

    def _depends(self, expr: Any) -> bool:
        """Whether an expression reads what depends on the scores."""
        return any(var in self.members or var in self.views for var in variables_of(expr))

    def _scores(self, value: Any) -> _Rule:
        """The rule of the scores themselves: of rows, and a weight that is read whole."""
        x, weight = value.args
        form = self.form(x.ty)
        if form not in (_Form.OTHER, _Form.WIDE) or len(_extents(weight.ty)) != 2:
            raise _Unsuited
        return _Rule(_Form.WIDE, [(x, _Form.OTHER), (weight, None)], _product_like(value))

    def _rule(self, value: Any) -> _Rule | None:
        """The rule of a call; None if it is none that can be computed by blocks of rows."""
        if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name = str(value.op.name)
        if name in ELEMENTWISE:
            return self._elementwise(value)
        if name == "relax.broadcast_to":
            return self._repeated(value)
        if name in _SOFTMAXES:
            return self._softmax(value, _SOFTMAXES[name])
        if name in _REDUCTIONS:
            return self._reduction(value, _REDUCTIONS[name])
        if name in RESHAPES:
            return self._reshape(value)
        if name == "relax.matmul":
            return self._product(value)
        return self._loss(value) if name == "relax.nn.nll_loss" else None

    def _elementwise(self, value: Any) -> _Rule | None:
        result = self.form(value.ty)
        if result is None or result is _Form.OTHER:
            return None
        operands = []
        for operand in value.args:
            extents = _extents(operand.ty)
            form = self._broadcast(extents, _extents(value.ty), result)
            if form is None and not self._is_read_whole(operand, result):
                return None
            operands.append((operand, form))

        def call(emit: Any, *blocks: Any) -> Any:
            arguments = [
                emit(relax.op.reshape(block, _extents(block.ty)[-1:]))
                if form is None and len(_extents(block.ty)) > 1
                else block
                for block, (_, form) in zip(blocks, operands, strict=True)
            ]
            return emit(relax.Call(value.op, arguments, value.attrs))

        return _Rule(result, operands, call)

    def _repeated(self, value: Any) -> _Rule | None:
        """The rule of what is the same for all classes, or for all rows as well."""
        x, result = value.args[0], self.form(value.ty)
        if result is not _Form.WIDE:
            return None
        form = self._broadcast(_extents(x.ty), _extents(value.ty), result)
        if form is None and not self._is_read_whole(x, result):
            return None
        shape = (self.block_rows, self.classes)

        def call(emit: Any, x: Any) -> Any:
            if form is None and len(_extents(x.ty)) > 1:
                x = emit(relax.op.reshape(x, _extents(x.ty)[-1:]))
            return emit(relax.op.broadcast_to(x, shape))

        return _Rule(result, [(x, form)], call)

    def _broadcast(self, extents: list[int], shape: list[int], result: _Form) -> _Form | None:
        """What an operand has for each row of a shape that it is broadcast to.

        Of one without the axes of rows, or with axes of one element in their place, nothing.
        """
        lead = shape if result is _Form.VECTOR else shape[:-1]
        if len(extents) != len(shape) or extents[: len(lead)] != lead:
            return None
        if result is _Form.VECTOR:
            return _Form.VECTOR
        return _Form.WIDE if extents[-1] == self.classes else _Form.COLUMN

    def _is_read_whole(self, operand: Any, result: _Form) -> bool:
        """Whether an operand is one number, or one for each class, and so the same for all rows."""
        extents = _extents(operand.ty)
        is_row = extents[-1:] == [self.classes] and math.prod(extents) == self.classes
        is_number = isinstance(operand.ty, relax.TensorType) and math.prod(extents) == 1
        is_known = bool(extents) or (is_number and operand.ty.ndim == 0)
        return (
            is_known
            and not self._depends(operand)
            and (is_number or (is_row and result is _Form.WIDE))
        )

    def _softmax(self, value: Any, function: Any) -> _Rule | None:
        (x,) = value.args
        rank = len(_extents(x.ty))
        if self.form(x.ty) is not _Form.WIDE or int(value.attrs.axis) % rank != rank - 1:
            return None
        return _Rule(_Form.WIDE, [(x, _Form.WIDE)], lambda emit, x: emit(function(x, axis=-1)))

    def _reduction(self, value: Any, function: Any) -> _Rule | None:
        (x,) = value.args
        rank, axes = len(_extents(x.ty)), value.attrs.axis
        if self.form(x.ty) is not _Form.WIDE or axes is None:
            return None
        reduced = sorted(int(axis) % rank for axis in axes)
        keeps = bool(value.attrs.keepdims)
        if reduced == [rank - 1]:
            result: _Form | _End = _Form.COLUMN if keeps else _Form.VECTOR
            axis = 1
        elif (
            function is relax.op.sum
            and reduced == list(range(rank - 1))
            and not keeps
            and _adds_precisely(value.ty)
        ):
            result, axis = _End.SUM, 0
        else:
            return None
        return _Rule(
            result, [(x, _Form.WIDE)], lambda emit, x: emit(function(x, [axis], keepdims=keeps))
        )

    def _reshape(self, value: Any) -> _Rule | None:
        x, old, new = value.args[0], self.form(value.args[0].ty), self.form(value.ty)
        if old is None or _Form.OTHER in (old, new) or (old is _Form.WIDE) != (new is _Form.WIDE):
            return None
        assert new is not None
        shape = (self.block_rows, 1) if new is _Form.COLUMN else (self.block_rows,)

        def call(emit: Any, x: Any) -> Any:
            return x if old is new else emit(relax.op.reshape(x, shape))

        return _Rule(new, [(x, old)], call)

    def _product(self, value: Any) -> _Rule | None:
        """The rule of a product that ends rows of scores: ḡ w, ḡᵀ x or xᵀ ḡ."""
        left, right = value.args
        if self.form(left.ty) is _Form.WIDE and self._is_member(left):
            if len(_extents(right.ty)) != 2 or self._depends(right):
                return None
            return _Rule(_End.ROWS, [(left, _Form.WIDE), (right, None)], _product_like(value))
        source, axes = strip_permutations(left, self._bound)
        other, other_axes = strip_permutations(right, self._bound)
        pair = [source, other]
        forms = [_Form.WIDE if self._is_member(each) else _Form.OTHER for each in pair]
        are_matrices = axes == [1, 0] and other_axes == [0, 1]
        if (
            not are_matrices
            or forms[0] is forms[1]
            or any(_extents(each.ty)[0] != self.rows for each in pair)
            or self._depends(pair[forms.index(_Form.OTHER)])
            or not _adds_precisely(value.ty)
        ):
            return None
        multiply = _product_like(value)

        def call(emit: Any, left: Any, right: Any) -> Any:
            return multiply(emit, emit(relax.op.permute_dims(left)), right)

        return _Rule(_End.SUM, list(zip(pair, forms, strict=True)), call)

    def _is_member(self, expr: Any) -> bool:
        """Whether an expression has a row of scores for each row, and depends on them."""
        return isinstance(expr, tvm.ir.Var) and self._is_wide(expr)

    def _permuted_sum(self, value: Any) -> _Rule | None:
        """The rule of a permuted sum over rows that nothing else reads: terms are permuted."""
        if not calls_op(value, PERMUTATION):
            return None
        (total,) = value.args
        rule = self.members.get(total)
        if rule is None or rule.result is not _End.SUM or self._uses[total] != 1:
            return None
        del self.members[total]
        axes = axes_of_permutation(value)

        def call(emit: Any, *blocks: Any) -> Any:
            return emit(relax.op.permute_dims(rule.call(emit, *blocks), axes))

        return _Rule(_End.SUM, rule.operands, call)

    def _loss(self, value: Any) -> _Rule | None:
        x, targets, *weights = value.args
        if (
            not self._is_member(x)
            or len(_extents(x.ty)) != 2
            or any(map(self._depends, value.args[1:]))
            or not _adds_precisely(value.ty)
        ):
            return None
        ignored = int(value.attrs.ignore_index)

        def call(emit: Any, x: Any, targets: Any, *weights: Any) -> Any:
            loss = relax.op.nn.nll_loss(
                x, targets, *weights, reduction="none", ignore_index=ignored
            )
            return emit(loss)

        operands = [(x, _Form.WIDE), (targets, _Form.VECTOR), *((each, None) for each in weights)]
        return _Rule(_End.LOSS, operands, call)


def _product_like(value: Any) -> Callable[..., Any]:
    """The call of a rule that multiplies as another product does."""
    dtype = str(value.ty.dtype)
    return lambda emit, left, right: emit(relax.op.matmul(left, right, out_dtype=dtype))


def _adds_precisely(ty: Any) -> bool:
    """Whether sums of a dtype may be rounded to it: not those of half precision."""
    dtype = str(ty.dtype)
    return bool(accumulator_dtype(dtype) == dtype)


class _Writer:
    """The bindings that compute a cluster block by block."""

    def __init__(self, builder: Any, cluster: _Cluster):
        self._builder, self._cluster = builder, cluster
        self._values = {binding.var: binding.value for binding in cluster.bindings}
        self._written: list[Any] = []
        self._var: Any = None  # what is being computed
        self._marks: dict[str, Any] = {}

    def bindings(self) -> list[Any]:
        """The bindings of the dataflow block, with the cluster in the place of its members."""
        cluster = self._cluster
        count = cluster.rows // cluster.block_rows
        parts: dict[Any, list[Any]] = {var: [] for var in cluster.members}
        for number in range(count):
            for var, part in self._block(number).items():
                self._var = var
                if cluster.members[var].result is _End.SUM and number:
                    total = relax.op.add(parts[var].pop(), part)
                    parts[var] = [self._bind(total, var if number == count - 1 else None)]
                else:
                    parts[var].append(part)
        self._marks = {_BEGINS: True}
        for var in cluster.read_outside:
            if cluster.members[var].result is not _End.SUM:
                self._join(var, parts[var])
        remaining = [
            (number < cluster.position and binding.var not in cluster.late, binding)
            for number, binding in enumerate(cluster.bindings)
            if binding.var not in cluster.members and binding.var not in cluster.views
        ]
        before = [binding for is_before, binding in remaining if is_before]
        behind = [binding for is_before, binding in remaining if not is_before]
        return [*before, *self._written, *behind]

    def _block(self, number: int) -> dict[Any, Any]:
        """The values of all members for a block of rows."""
        cluster = self._cluster
        values: dict[Any, Any] = {}
        slices: dict[Any, Any] = {}
        self._marks = {_BEGINS: True}

        def operand(expr: Any, form: _Form | None) -> Any:
            if expr in values:
                return values[expr]
            if expr in cluster.copied:
                return compute(expr, cluster.copied[expr])
            if form is None:
                return expr
            if (expr, form) not in slices:
                slices[expr, form] = self._slice(expr, form, number)
            return slices[expr, form]

        def compute(var: Any, rule: _Rule) -> Any:
            self._var = var
            blocks = [operand(*each) for each in rule.operands]
            self._var = var  # what it reads may have been computed first
            values[var] = rule.call(self._bind, *blocks)
            return values[var]

        for var, rule in cluster.members.items():
            compute(var, rule)
        return {var: values[var] for var in cluster.members}

    def _slice(self, expr: Any, form: _Form, number: int) -> Any:
        """The rows of a block, of a tensor that is no member."""
        cluster, extents = self._cluster, _extents(expr.ty)
        shape = [cluster.rows] if form is _Form.VECTOR else [cluster.rows, extents[-1]]
        rows = expr if extents == shape else self._bind(relax.op.reshape(expr, shape))
        begin = number * cluster.block_rows

        def sliced(x: te.Tensor) -> te.Tensor:
            return te.compute(
                [cluster.block_rows, *shape[1:]],
                lambda row, *place: x(begin + row, *place),
                name="rows",
            )

        # No part of the kernels that read it: these are the same for all blocks.
        call = self._builder.call_te(
            sliced, rows, primfunc_name_hint="rows", primfunc_attrs=self._attributes()
        )
        return self._bind(call)

    def _attributes(self) -> dict[str, Any]:
        """The attributes of a kernel that is fused with no other; the first of a block tells so."""
        marks, self._marks = self._marks, {}
        return {**OPAQUE, **marks}

    def _join(self, var: Any, parts: list[Any]) -> None:
        """Bind a variable to what the parts of all blocks are together."""
        self._var, value = var, self._values[var]
        is_loss = self._cluster.members[var].result is _End.LOSS
        is_flat = _extents(value.ty) == [self._cluster.rows, *_extents(parts[0].ty)[1:]]
        call = self._builder.call_te(
            lambda *parts: topi.concatenate(parts, 0),
            *parts,
            primfunc_name_hint="rows",
            primfunc_attrs=self._attributes(),
        )
        rows = self._bind(call, None if is_loss or not is_flat else var)
        if is_loss:
            self._reduce(var, rows, value)
        elif not is_flat:
            self._bind(relax.op.reshape(rows, _extents(value.ty)), var)

    def _reduce(self, var: Any, losses: Any, value: Any) -> None:
        """Bind a variable to the losses of all rows, or to their sum, or to their mean.

        The mean is over the weights of the labels that count.
        """
        _, targets, *weights = value.args
        if value.attrs.reduction == "none":
            self._bind(losses, var)
            return
        if value.attrs.reduction == "sum":
            self._bind(relax.op.sum(losses), var)
            return

        def number(count: float, like: Any) -> Any:
            return relax.const(count, str(like.ty.dtype))

        bind = self._bind
        ignored = number(int(value.attrs.ignore_index), targets)
        is_class = bind(
            relax.op.logical_and(
                bind(relax.op.greater_equal(targets, number(0, targets))),
                bind(relax.op.less(targets, number(self._cluster.classes, targets))),
            )
        )
        counts = bind(relax.op.logical_and(bind(relax.op.not_equal(targets, ignored)), is_class))
        weight = number(1.0, losses)
        if weights:
            labels = bind(relax.op.where(counts, targets, number(0, targets)))
            weight = bind(relax.op.take(weights[0], labels, axis=0))
        counted = bind(relax.op.where(counts, weight, number(0.0, losses)))
        self._bind(relax.op.divide(bind(relax.op.sum(losses)), bind(relax.op.sum(counted))), var)

    def _bind(self, value: Any, var: Any = None) -> Any:
        """Bind a value to a variable, or to a new one, named after what is being computed."""
        span = self._values[self._var].span
        if isinstance(value, tvm.ir.Call):
            value = relax.Call(value.op, value.args, value.attrs, value.ty_args, span)
        value = self._builder.normalize(value)
        if var is None:
            var = relax.DataflowVar(self._var.name, value.ty)
        self._written.append(relax.VarBinding(var, value, span))
        return var
