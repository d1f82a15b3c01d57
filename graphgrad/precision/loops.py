"""Mixed precision inside loops: their products read rounded operands, all else stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.ir import prim

from ..fallback.graph import (
    Key,
    Operation,
    all_operations,
    is_reduction,
    outputs_of,
    rebuild_reduction,
    replace_bodies,
    rewritten,
)
from ..fallback.kernels.expressions import kept_expressions, kernel_of
from ..fallback.kinds import map_stage
from ..fallback.walk import Expr, is_load, loaded, loaded_tensor, tensor_key
from ..ir.kernel_names import given_name

_WIDE = "float32"


@dataclass(frozen=True)
class RoundedLoop:
    """The kernel of a loop whose products are of rounded numbers.

    Attributes
    ----------
    kernel : PrimFunc
        Its results have the dtypes that they had.
    inputs : list of (int, bool)
        For each of its inputs, the number of the input of the old kernel, and whether it is given
        rounded.
    """

    kernel: tirx.PrimFunc
    inputs: list[tuple[int, bool]]


def round_products(func: tirx.PrimFunc, outputs: int, dtype: str) -> RoundedLoop | None:
    """The kernel of a loop with the operands of its products rounded to a dtype.

    Sums are float32. A product's result is rounded, too: its cotangent then is, and the products of
    the backward pass are of rounded numbers like those of the forward pass.

    Parameters
    ----------
    func : PrimFunc
    outputs : int
        How many of its parameters, the last ones, are results.
    dtype : "bfloat16" or "float16"

    Returns
    -------
    RoundedLoop or None
        None for what is no loop, for one that has no such product, and for kernels with a name:
        what these compute is their author's to say, and a gradient rule may go by the name.
    """
    program = kept_expressions(func)
    if program is None or given_name(func) is not None:
        return None
    stages = all_operations(program.outputs)
    if not any(isinstance(stage, te.ScanOp) for stage in stages):
        return None
    inputs = program.parameters[: len(program.parameters) - outputs]
    rounding = _Rounding(dtype, [each for each in inputs if isinstance(each, te.Tensor)])
    results = rewritten(program.outputs, rounding.product)
    return _loop(inputs, results, rounding.made) if rounding.made else None


def _loop(
    inputs: Sequence[Any], results: list[te.Tensor], rounded: Mapping[Key, te.Tensor]
) -> RoundedLoop:
    """A loop as a kernel; inputs that it reads rounded are so in front of it."""
    read = {tensor_key(tensor) for stage in all_operations(results) for tensor in outputs_of(stage)}
    parameters, taken = [], []
    for number, given in enumerate(inputs):
        narrow = rounded.get(tensor_key(given)) if isinstance(given, te.Tensor) else None
        if narrow is None or tensor_key(given) in read:
            parameters.append(given)
            taken.append((number, False))
        if narrow is not None:
            parameters.append(narrow)
            taken.append((number, True))
    return RoundedLoop(kernel_of(parameters, results), taken)


class _Rounding:
    """Products of rounded numbers, in the place of those of float32.

    Attributes
    ----------
    made : dict
        By tensors, those of fewer bits that hold their values rounded: placeholders of inputs of
        the kernel, which are rounded once, in front of the loop; else stages.

    Parameters
    ----------
    dtype : str
    inputs : sequence of Tensor
        The placeholders that are inputs of the kernel; others are states of its loops.
    """

    def __init__(self, dtype: str, inputs: Sequence[te.Tensor]):
        self._dtype = dtype
        self._inputs = {tensor_key(tensor) for tensor in inputs}
        self.made: dict[Key, te.Tensor] = {}

    def product(self, op: Operation) -> list[te.Tensor] | None:
        """What computes a sum of products instead; None of other stages."""
        factors = _factors(op)
        if not factors or not all(self._is_known(loaded_tensor(factor)) for factor in factors):
            return None
        reduce = op.body[0]
        terms = prim.Mul(*(self._rounded(factor).astype(_WIDE) for factor in factors))
        total = replace_bodies(op, rebuild_reduction(reduce, [terms])).output(0)
        return [self._through_fewer_bits(total)]

    def _is_known(self, tensor: te.Tensor) -> bool:
        """Whether a tensor's values stand at all times: a state is one for steps to come, too."""
        return not isinstance(tensor.op, te.PlaceholderOp) or tensor_key(tensor) in self._inputs

    def _rounded(self, load: Expr) -> Expr:
        """A load from the rounded tensor."""
        tensor, indices = loaded(load)
        key = tensor_key(tensor)
        if key not in self.made:
            name = f"{tensor.op.name}_{self._dtype}"
            if isinstance(tensor.op, te.PlaceholderOp):
                self.made[key] = te.placeholder(tensor.shape, self._dtype, name=name)
            else:
                self.made[key] = map_stage(
                    tensor.shape, lambda *at: tensor(*at).astype(self._dtype), name
                )
        return self.made[key](*indices)

    def _through_fewer_bits(self, total: te.Tensor) -> te.Tensor:
        rounded = map_stage(
            total.shape, lambda *at: total(*at).astype(self._dtype), f"{total.op.name}_rounded"
        )
        return map_stage(total.shape, lambda *at: rounded(*at).astype(_WIDE), total.op.name)


def _factors(op: Operation) -> list[Expr]:
    """Both factors, loads, of a stage that is a sum of products of float32; none of others."""
    if not is_reduction(op) or len(op.body) != 1 or str(op.output(0).dtype) != _WIDE:
        return []
    (result,), (term,) = op.body[0].combiner.result, op.body[0].source
    if not isinstance(result, prim.Add) or not isinstance(term, prim.Mul):
        return []
    factors = [term.a, term.b]
    return factors if all(map(is_load, factors)) else []
