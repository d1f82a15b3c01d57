"""Training form and inference form of a model, made when the model is used.

A `Model` says nothing about the two. `specialize` copies its module and writes each batch norm and
each dropout as the chosen form has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError, ModelError
from ..ir.provenance import read
from ..ir.rewrite import map_bindings
from ..ir.value_names import equal_names, record_aliases
from ..ir.visits import nodes_in
from ..ops import random
from .arrays import dtype_name
from .model import Model
from .onnx_graph import STATISTICS
from .onnx_importer import TRAINING_DROPOUTS

_BATCH_NORM = tvm.ir.Op.get("relax.nn.batch_norm")
_ASTYPE = tvm.ir.Op.get("relax.astype")
_DROPOUT = tvm.ir.Op.get("relax.nn.dropout")

_SEEDED = "graphgrad.seeded"


def specialize(model: Model, training: bool | None) -> tvm.IRModule:
    """The module of a model in training form or in inference form.

    Parameters
    ----------
    model : Model
    training : bool or None
        ``True``: every batch norm normalizes by the statistics of the batch and updates its
        running ones, ``new = (1 - m)·old + m·batch`` with the population variance, where ``m`` is
        Relax's momentum (one minus that of ONNX). ``False``: every batch norm uses its running
        statistics. ``None``: each node as the file says.

    Returns
    -------
    tvm.IRModule
        ``main(*inputs, *params, *state, [seed])`` returns ``((*outputs,), (*new_state,))``. It
        takes a seed, an int64 scalar, if it has a dropout that drops values, see `is_seeded`. The
        new state has the order of ``model.state``; a statistic that no node updates is returned as
        it came, and one that several nodes read is updated by each in turn. Where no node is in
        training form, the new state is the empty tuple. Spans are kept.

    Raises
    ------
    ArgumentError
        If `training` is not one of the three.
    ModelError
        If a batch norm that should train, or a dropout, stands in a branch or in a function that
        cannot be inlined into main.
    """
    if training not in (True, False, None):
        raise ArgumentError(f"training: expected True, False or None, given {training!r}")
    # Cloned because main is replaced below, and a pass that finds nothing to do returns the very
    # module that it was given.
    module = relax.transform.InlinePrivateFunctions()(model.mod.clone())
    module = relax.transform.DeadCodeElimination(["main"])(module)
    rewriter = _Form(module["main"], list(model.state), training)
    rewriter.refuse_hidden_calls(module)
    module["main"] = rewriter.function()
    # Before bindings are merged: the output of a dropout that drops nothing is its input, and would
    # lose its name.
    aliases = equal_names(module["main"])
    module = relax.transform.CanonicalizeBindings()(module)
    module = relax.transform.DeadCodeElimination(["main"])(module)
    module["main"] = record_aliases(module["main"], aliases)
    return module


def is_seeded(module: tvm.IRModule) -> bool:
    """Whether main of a module in training or inference form takes a seed, its last parameter."""
    return bool((module["main"].attrs or {}).get(_SEEDED, False))


class _Form:
    """One pass over the bindings of main, which rewrites batch norms and dropouts."""

    def __init__(self, main: relax.Function, state: Sequence[str], training: bool | None):
        self._main = main
        self._training = training
        self._training_dropouts = set((main.attrs or {}).get(TRAINING_DROPOUTS, ()))
        parameters = {var.name: var for var in main.params}
        # The variable that holds each statistic so far: every update binds a new one.
        self._current: dict[str, relax.Var] = {name: parameters[name] for name in state}
        self._statistic_names = {var: name for name, var in self._current.items()}
        self._values = {
            binding.var: binding.value
            for block in main.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }
        self._seed = relax.Var("dropout_seed", relax.TensorType([], "int64"))
        dropping = [
            var
            for var, call in self._calls(_DROPOUT)
            if float(call.attrs.rate) > 0 and self._dropout_trains(call)
        ]
        # Each dropout draws from a random stream of its own, as all of them share one seed.
        self._streams = {var: number for number, var in enumerate(dropping)}

    def function(self) -> relax.Function:
        """Main in the chosen form, which returns the outputs and the new state."""
        blocks = map_bindings(self._main.body.blocks, self._rewritten)
        result = self._main.body.body
        outputs = result if isinstance(result, relax.Tuple) else relax.Tuple([result])
        new_state = relax.Tuple(list(self._current.values()) if self._any_trains() else [])
        params = [*self._main.params, *[self._seed] * bool(self._streams)]
        body = relax.Tuple([outputs, new_state])
        main = relax.Function(
            params,
            relax.SeqExpr(blocks, body),
            body.ty,
            is_pure=self._main.is_pure,
            attrs=self._main.attrs,
        )
        if self._streams:
            main = main.with_attr(_SEEDED, True)
        return main.without_attr(TRAINING_DROPOUTS) if self._training_dropouts else main

    def refuse_hidden_calls(self, module: tvm.IRModule) -> None:
        """Raise a ModelError if a batch norm or dropout is in a branch or in another function."""
        for variable, function in module.functions.items():
            if not isinstance(function, relax.Function):
                continue
            is_main = variable.name_hint == "main"
            for op in (_BATCH_NORM, _DROPOUT):
                # `_calls` sees the bindings of main itself: what exceeds it is in a branch.
                if _count(function, op) > (len(self._calls(op)) if is_main else 0):
                    where = "a branch of main" if is_main else f"function {variable.name_hint!r}"
                    raise ModelError(
                        f"{op.name} stands in {where}, where it cannot be switched between "
                        "training and inference: move it to main, or make the function private"
                    )

    def _calls(self, op: tvm.ir.Op) -> list[tuple[relax.Var, relax.Call]]:
        """The calls of an operator that main binds, those in branches not included."""
        return [(var, value) for var, value in self._values.items() if _is_call(value, op)]

    def _dropout_trains(self, call: relax.Call) -> bool:
        """Whether a dropout is in training form.

        Relax has no attribute for that: the importer lists the nodes that are, as the file says.
        """
        if self._training is None:
            return read(call.span).node in self._training_dropouts
        return self._training

    def _batch_norm_trains(self, call: relax.Call) -> bool:
        """Whether a batch norm is in training form: as chosen, else as its attribute says."""
        return bool(call.attrs.training) if self._training is None else self._training

    def _any_trains(self) -> bool:
        """Whether main returns new statistics."""
        if self._training is None:
            return any(self._batch_norm_trains(call) for _, call in self._calls(_BATCH_NORM))
        return self._training

    def _rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that take the place of one binding of main."""
        value: Any = self._values.get(binding.var)
        if _is_call(value, _DROPOUT):
            stream = self._streams.get(binding.var)
            if stream is None:
                return _identity(binding.var, value)
            return _random_dropout(binding.var, value, self._seed, stream)
        if _is_call(value, _BATCH_NORM):
            if self._batch_norm_trains(value):
                return self._training_batch_norm(binding.var, value)
            return [relax.VarBinding(binding.var, _batch_norm(value, value.args, False))]
        return [binding]

    def _training_batch_norm(self, var: relax.Var, call: relax.Call) -> list[relax.Binding]:
        """The bindings of a batch norm in training form and of its new statistics."""
        args = list(call.args)
        before: list[relax.Binding] = []
        after: list[relax.Binding] = []
        for index in STATISTICS:
            name = self._statistic(call.args[index])
            if name is None:
                continue
            old = self._current[name]
            # Casts may stand between a statistic and the node: the state keeps its own dtype.
            args[index] = _cast(old, args[index].ty, call.span, before)
            new_statistic = relax.Var(f"{name}.new", args[index].ty)
            # Statistics are arguments 3 and 4, and results 1 and 2.
            after.append(
                relax.VarBinding(new_statistic, relax.TupleGetItem(var, index - 2, call.span))
            )
            self._current[name] = _cast(new_statistic, old.ty, call.span, after)
        return [*before, relax.VarBinding(var, _batch_norm(call, args, True)), *after]

    def _statistic(self, value: relax.Expr) -> str | None:
        """The name of the statistic that a value is, seen through casts and aliases.

        None if it is not the model's state but, for example, a constant: nothing can update that.
        """
        while value not in self._statistic_names:
            definition: Any = self._values.get(value)
            if _is_call(definition, _ASTYPE):
                value = definition.args[0]
            elif isinstance(definition, relax.Var):
                value = definition
            else:
                return None
        return self._statistic_names[value]


def _batch_norm(call: relax.Call, args: Sequence[relax.Expr], training: bool) -> relax.Call:
    """A batch norm with other arguments and another form, but the same type and span."""
    attrs = call.attrs
    rewritten = relax.op.nn.batch_norm(
        *args,
        axis=int(attrs.axis),
        epsilon=float(attrs.epsilon),
        center=bool(attrs.center),
        scale=bool(attrs.scale),
        momentum=float(attrs.momentum),
        training=training,
    )
    return _typed(rewritten, call.ty, call.span)


def _identity(var: relax.Var, dropout: relax.Call) -> list[relax.Binding]:
    """The bindings of a dropout that drops nothing: its input, and a mask of ones."""
    data = dropout.args[0]
    mask = relax.Var(f"{var.name}.mask", dropout.ty.fields[1])
    ones = _typed(relax.op.ones_like(data), mask.ty, dropout.span)
    return [relax.VarBinding(mask, ones), relax.VarBinding(var, relax.Tuple([data, mask]))]


def _random_dropout(
    var: relax.Var, dropout: relax.Call, seed: relax.Var, stream: int
) -> list[relax.Binding]:
    """The bindings of a dropout that drops values: they are drawn from the seed."""
    data = dropout.args[0]
    rate = float(dropout.attrs.rate)
    output = relax.Var(f"{var.name}.kept", dropout.ty.fields[0])
    bool_mask = relax.Var(f"{var.name}.drawn", relax.TensorType(data.ty.shape, "bool"))
    mask = relax.Var(f"{var.name}.mask", dropout.ty.fields[1])

    cast = relax.op.astype(bool_mask, dtype_name(mask.ty.dtype))
    return [
        _call_binding(output, random.dropout_call(data, seed, rate, stream), dropout.span),
        _call_binding(bool_mask, random.mask_call(data, seed, rate, stream), dropout.span),
        _call_binding(mask, cast, dropout.span),
        relax.VarBinding(var, relax.Tuple([output, mask])),
    ]


def _cast(
    value: relax.Var, ty: relax.TensorType, span: tvm.ir.Span, bindings: list[relax.Binding]
) -> relax.Var:
    """`value` in the dtype of `ty`; a cast, if it needs one, is added to `bindings`."""
    if value.ty.dtype == ty.dtype:
        return value
    var = relax.Var(value.name, ty)
    cast = _typed(relax.op.astype(value, dtype_name(ty.dtype)), ty, span)
    bindings.append(relax.VarBinding(var, cast))
    return var


def _call_binding(var: relax.Var, call: relax.Call, span: tvm.ir.Span | None) -> relax.Binding:
    return relax.VarBinding(var, _typed(call, var.ty, span))


def _typed(call: relax.Call, ty: tvm.ir.Type, span: tvm.ir.Span | None) -> relax.Call:
    """A call with a type and a span; a call that was just built has neither."""
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, span, ty)


def _is_call(value: object, op: tvm.ir.Op) -> bool:
    return isinstance(value, relax.Call) and value.op == op


def _count(function: relax.Function, op: tvm.ir.Op) -> int:
    """How often an operator is called in a function, branches included."""
    return sum(call.op == op for call in nodes_in(function, relax.Call))
