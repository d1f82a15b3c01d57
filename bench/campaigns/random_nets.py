"""Random networks as ONNX files: some twenty nodes of many kinds, with weights and inputs.

Each node is evaluated in float64 by the standard's reference as it is added, so that shapes and
sizes of values are known: a layer that would leave the range of ordinary values is left out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

OPSETS = (13, 17, 18, 20, 21, 23)

_LARGEST = 30.0  # of a value: what is beyond tells more of overflow than of the layer
_MOST_ELEMENTS = 20_000


class LRN(OpRun):  # type: ignore[misc]
    """In the place of the reference's, which takes the batch for the channels."""

    def _run(
        self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int
    ) -> tuple[np.ndarray]:
        squares = np.pad(x * x, ((0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)))
        sums = sum(squares[:, k : k + x.shape[1]] for k in range(size))
        return (x / (bias + alpha / size * sums) ** beta,)


class Mean(OpRun):  # type: ignore[misc]
    """In the place of the reference's, which does not broadcast the first value."""

    def _run(self, *values: np.ndarray) -> tuple[np.ndarray]:
        return (sum(values) / len(values),)


class Erf(OpRun):  # type: ignore[misc]
    """In the place of the reference's, which rounds to float32."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.asarray(np.vectorize(math.erf, otypes=["d"])(x), x.dtype),)


MENDED = (LRN, Mean, Erf)
"""For ``ReferenceEvaluator(new_ops=...)``."""


@dataclass
class Net:
    """A network that grows.

    Attributes
    ----------
    opset : int
    rng : Generator
    nodes : list of NodeProto
    inputs, weights : dict of arrays
        By name, in float64.
    values : dict of arrays
        Every float value that a layer may read, as it is for these inputs and weights.
    """

    opset: int
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, *items: Any) -> Any:
        """One of the items."""
        return items[int(self.rng.integers(len(items)))]

    def weight(self, shape: Sequence[int], scale: float = 0.0, middle: float = 0.0) -> str:
        """A new weight, by default of the size that keeps the size of what it is applied to."""
        scale = scale or 1 / math.sqrt(max(1, math.prod(shape[1:])))
        name = f"w{len(self.weights)}"
        self.weights[name] = _rounded(middle + scale * self.rng.standard_normal(tuple(shape)))
        return name

    def table(self, array: Any, dtype: str = "int64") -> str:
        """A constant that no gradient is asked for."""
        name = f"t{len(self.tables)}"
        self.tables[name] = np.asarray(array, dtype=dtype)
        return name

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values[value].shape

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; the name of its first output."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(operator, inputs, names, f"n{len(self.nodes)}", **attributes)
        arrays = {**self.values, **self.weights, **self.tables}
        results = evaluate_node(node, [arrays.get(name) for name in inputs], self.opset)
        if operator == "MaxPool" and not _as_inferred(node, arrays[inputs[0]], results[0]):
            return inputs[0]  # the reference confuses some paddings
        self.nodes.append(node)
        self.values.update(zip(names, results, strict=True))
        return names[0]

    def model(self) -> onnx.ModelProto:
        """The network in float32; its outputs are the float values that no node reads."""
        read = {name for node in self.nodes for name in node.input}
        ends = [name for node in self.nodes for name in node.output if name not in read]
        ends = [name for name in ends if self.values[name].dtype == np.float64]
        stored = [
            numpy_helper.from_array(v.astype("float32") if v.dtype == np.float64 else v, name)
            for name, v in (self.weights | self.tables).items()
        ]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [_info(name, array) for name, array in self.inputs.items()],
            [_info(name, self.values[name]) for name in ends],
            stored,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])


def evaluate_node(
    node: onnx.NodeProto, arrays: Sequence[np.ndarray | None], opset: int
) -> list[np.ndarray]:
    """The outputs of one node by the standard's reference, in the dtypes of its inputs."""
    named = {name: array for name, array in zip(node.input, arrays, strict=True) if name}
    graph = helper.make_graph(
        [node],
        "node",
        [_info(name, array) for name, array in named.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(v) for v in ReferenceEvaluator(model, new_ops=MENDED).run(None, named)]


def _as_inferred(node: onnx.NodeProto, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether a result has the shape that the standard infers."""
    ends = _info(node.input[0], x), onnx.ValueInfoProto(name=node.output[0])
    graph = helper.make_graph([node], "node", [ends[0]], [ends[1]])
    model = helper.make_model(graph)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape
    return [side.dim_value for side in inferred.dim] == list(y.shape)


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """The declaration of an array; floats are float32 in the file."""
    dtype = TensorProto.FLOAT if array.dtype == np.float64 else None
    dtype = dtype or helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, dtype, array.shape)


def _rounded(array: np.ndarray) -> np.ndarray:
    """An array in float64 of values that float32 holds."""
    return array.astype("float32").astype("float64")


Layer = Callable[[Net, str], str]


@dataclass(frozen=True)
class _Kind:
    """A kind of layer: what adds it, the rank it reads, its first opset, and how often it comes."""

    add: Layer
    rank: int | None
    since: int
    share: int


LAYERS: dict[str, _Kind] = {}


def layer(rank: int | None = None, since: int = 0, share: int = 1) -> Callable[[Layer], Layer]:
    """Register a function that adds a layer to a value; None: of any rank above 0."""

    def register(add: Layer) -> Layer:
        LAYERS[add.__name__] = _Kind(add, rank, since, share)
        return add

    return register


def random_net(rng: np.random.Generator, layers: int | None = None) -> Net:
    """A random network.

    Parameters
    ----------
    rng : Generator
    layers : int, optional
        Default: 3 to 16.
    """
    net = Net(OPSETS[int(rng.integers(len(OPSETS)))], rng)
    batch = int(rng.integers(1, 4))
    for name, shape in {
        "image": (batch, net.pick(1, 2, 3, 4, 8), *map(int, rng.integers(3, 12, 2))),
        "sequence": (batch, int(rng.integers(2, 9)), net.pick(2, 3, 4, 6, 8)),
        "features": (batch, int(rng.integers(2, 17))),
    }.items():
        if not net.inputs or rng.random() < 0.3:
            net.inputs[name] = net.values[name] = _rounded(rng.standard_normal(shape))
    for name in list(net.inputs):
        if len(net.inputs) > 1 and rng.random() < 0.4:
            del net.inputs[name], net.values[name]
    wanted = layers or int(rng.integers(3, 17))
    for _ in range(20 * wanted):
        if wanted == 0:
            break
        wanted -= _grow(net)
    return net


def _grow(net: Net) -> bool:
    """Try to add one random layer to one random value."""
    # Later values rather than earlier ones: the network becomes deep.
    values = [name for name, v in net.values.items() if v.ndim and v.dtype == np.float64]
    value = values[-1 - int(len(values) * net.rng.random() ** 3)]
    rank = net.values[value].ndim
    kinds = [k for k in LAYERS.values() if k.rank in (None, rank) and k.since <= net.opset]
    shares = np.array([kind.share for kind in kinds], float)
    kind = kinds[int(net.rng.choice(len(kinds), p=shares / shares.sum()))]
    marks = len(net.nodes), len(net.weights), len(net.tables), len(net.values)
    try:
        result = kind.add(net, value)
    except ValueError:
        result = value  # the reference fails: it has no windows in padding, and few gathers
    ordinary = all(_is_ordinary(v) for v in list(net.values.values())[marks[3] :])
    if result != value and ordinary:
        return True
    del net.nodes[marks[0] :]
    for items, count in zip((net.weights, net.tables, net.values), marks[1:], strict=True):
        for name in list(items)[count:]:
            del items[name]
    return False


def _is_ordinary(array: np.ndarray) -> bool:
    """Whether a value is of ordinary size, finite, and not empty."""
    if array.dtype != np.float64:
        return True
    return bool(
        0 < array.size <= _MOST_ELEMENTS
        and np.isfinite(array).all()
        and np.abs(array).max() < _LARGEST
    )


_ACTIVATIONS: tuple[tuple[str, int, dict[str, tuple[float, ...]]], ...] = (
    ("Relu", 0, {}),
    ("Sigmoid", 0, {}),
    ("Tanh", 0, {}),
    ("Elu", 0, {"alpha": (0.5, 1.0, 1.5)}),
    ("Selu", 0, {}),
    ("Celu", 0, {"alpha": (0.5, 2.0)}),
    ("LeakyRelu", 0, {"alpha": (0.01, 0.3)}),
    ("ThresholdedRelu", 0, {"alpha": (0.2, 1.0)}),
    ("HardSigmoid", 0, {"alpha": (0.2, 0.3), "beta": (0.4, 0.5)}),
    ("HardSwish", 14, {}),
    ("Softplus", 0, {}),
    ("Softsign", 0, {}),
    ("Mish", 18, {}),
    ("Gelu", 20, {}),
    ("Erf", 0, {}),
    ("Sin", 0, {}),
    ("Cos", 0, {}),
    ("Atan", 0, {}),
    ("Sinh", 0, {}),
    ("Asinh", 0, {}),
    ("Exp", 0, {}),
    ("Abs", 0, {}),
    ("Neg", 0, {}),
)


@layer(share=6)
def activation(net: Net, x: str) -> str:
    operators = [a for a in _ACTIVATIONS if a[1] <= net.opset]
    operator, _, choices = net.pick(*operators)
    attributes = {name: net.pick(*values) for name, values in choices.items()}
    if operator == "Gelu":
        attributes["approximate"] = net.pick("none", "tanh")
    return net.add(operator, x, **attributes)


@layer()
def positive(net: Net, x: str) -> str:
    """A root, logarithm, reciprocal or power of what is positive."""
    base = net.add("Add", net.add("Softplus", x), net.table(np.float64(0.5), "float64"))
    operator = net.pick("Sqrt", "Log", "Reciprocal", "Pow")
    if operator == "Pow":
        return net.add("Pow", base, net.table(net.pick(-1.5, 0.5, 2.0, 3.0), "float64"))
    return net.add(operator, base)


@layer()
def clip(net: Net, x: str) -> str:
    low, high = (net.table(v, "float64") for v in (net.pick(-1.0, -0.2), net.pick(0.6, 6.0)))
    return net.add("Clip", x, *net.pick((low, high), (low,), ("", high)))


@layer()
def scale_and_shift(net: Net, x: str) -> str:
    """A product with, and a sum of, a weight that broadcasts."""
    shape = [n if net.rng.random() < 0.6 else 1 for n in net.shape(x)]
    shape = shape[int(net.rng.integers(len(shape))) :]
    operator = net.pick("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")
    middle = 1.5 if operator == "Div" else 0.0
    weight = net.weight(shape, 0.2 if middle else 0.7, middle)
    if operator in ("PRelu", "Div") or net.rng.random() < 0.5:
        return net.add(operator, x, weight)
    return net.add(operator, weight, x)


@layer(share=2)
def join(net: Net, x: str) -> str:
    """A sum, product or choice of two values whose shapes broadcast; else with itself."""
    fitting = [name for name in net.values if name != x and _broadcast(net, x, name)]
    other = net.pick(*fitting) if fitting else x
    operator = net.pick("Add", "Sub", "Mul", "Max", "Min", "Where", "Sum", "Mean")
    if operator == "Where":
        return net.add("Where", net.add("Less", x, other), x, other)
    return net.add(operator, x, other)


def _broadcast(net: Net, x: str, other: str) -> bool:
    if net.values[other].dtype != np.float64:
        return False
    try:
        np.broadcast_shapes(net.shape(x), net.shape(other))
    except ValueError:
        return False
    return True


@layer()
def concatenate(net: Net, x: str) -> str:
    axis = int(net.rng.integers(-len(net.shape(x)), len(net.shape(x))))
    others = [
        name
        for name, v in net.values.items()
        if v.dtype == np.float64
        and len(v.shape) == len(net.shape(x))
        and np.delete(v.shape, axis).tolist() == np.delete(net.shape(x), axis).tolist()
    ]
    return net.add("Concat", x, net.pick(*others), *net.pick((), (x,)), axis=axis)


@layer()
def split(net: Net, x: str) -> str:
    axis = int(net.rng.integers(len(net.shape(x))))
    size = net.shape(x)[axis]
    if size < 2:
        return x
    first = int(net.rng.integers(1, size))
    net.add("Split", x, net.table([first, size - first]), outputs=2, axis=axis)
    return list(net.values)[-net.pick(1, 2)]


@layer()
def slices(net: Net, x: str) -> str:
    axis = int(net.rng.integers(len(net.shape(x))))
    size = net.shape(x)[axis]
    start = int(net.rng.integers(size))
    step = net.pick(1, 1, 2, -1, -2)
    end = net.pick(size, 2**31 - 1) if step > 0 else -(2**31)
    return net.add("Slice", x, *(net.table([v]) for v in (start, end, axis, step)))


@layer()
def pad(net: Net, x: str) -> str:
    mode = net.pick("constant", "reflect", "edge")
    rank = len(net.shape(x))
    room = [n - 1 if mode == "reflect" else 2 for n in net.shape(x)]
    amounts = [int(net.rng.integers(0, min(2, most) + 1)) for most in room]
    begins = amounts if rank < 4 else [0, 0, *amounts[2:]]
    ends = [0] * (rank - 1) + [amounts[-1]]
    value = [net.table(0.5, "float64")] if mode == "constant" and net.rng.random() < 0.5 else []
    return net.add("Pad", x, net.table([*begins, *ends]), *value, mode=mode)


@layer()
def reshape(net: Net, x: str) -> str:
    shape = list(net.shape(x))
    kind = net.pick("merge", "flatten", "unsqueeze", "squeeze", "expand")
    if kind == "merge" and len(shape) > 1:
        axis = int(net.rng.integers(len(shape) - 1))
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        return net.add("Reshape", x, net.table(shape))
    if kind == "unsqueeze" and len(shape) < 4:
        return net.add("Unsqueeze", x, net.table([int(net.rng.integers(len(shape) + 1))]))
    if kind == "squeeze" and 1 in shape and len(shape) > 2:
        return net.add("Squeeze", x, net.table([shape.index(1)]))
    if kind == "expand" and 1 in shape:
        return net.add("Expand", x, net.table([3 if n == 1 else n for n in shape]))
    if len(shape) > 1:
        return net.add("Flatten", x, axis=int(net.rng.integers(len(shape))))
    return x


@layer()
def transpose(net: Net, x: str) -> str:
    if len(net.shape(x)) < 2:
        return x
    return net.add("Transpose", x, perm=net.rng.permutation(len(net.shape(x))).tolist())


@layer()
def gather(net: Net, x: str) -> str:
    axis = int(net.rng.integers(len(net.shape(x))))
    size = net.shape(x)[axis]
    shape = net.pick((2,), (3,), (2, 2)) if len(net.shape(x)) < 4 else (2,)
    indices = net.rng.integers(-size, size, shape)
    if net.rng.random() < 0.5:
        like = list(net.shape(x))
        like[axis] = 2
        elements = net.table(net.rng.integers(-size, size, like))
        return net.add("GatherElements", x, elements, axis=axis)
    return net.add("Gather", x, net.table(indices), axis=axis)


@layer()
def tile(net: Net, x: str) -> str:
    return net.add("Tile", x, net.table([net.pick(1, 1, 2) for _ in net.shape(x)]))


@layer()
def softmax(net: Net, x: str) -> str:
    axis = int(net.rng.integers(-len(net.shape(x)), len(net.shape(x))))
    return net.add(net.pick("Softmax", "LogSoftmax"), x, axis=axis)


@layer(since=18)
def reduction(net: Net, x: str) -> str:
    operator = net.pick(
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
        *("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"),
    )
    rank = len(net.shape(x))
    axes = net.rng.permutation(rank)[: int(net.rng.integers(1, rank + 1))]
    return net.add(operator, x, net.table(axes), keepdims=net.pick(0, 1))


@layer()
def cumulative(net: Net, x: str) -> str:
    axis = net.table(int(net.rng.integers(len(net.shape(x)))))
    return net.add("CumSum", x, axis, exclusive=net.pick(0, 1), reverse=net.pick(0, 1))


@layer()
def top(net: Net, x: str) -> str:
    axis = int(net.rng.integers(len(net.shape(x))))
    k = int(net.rng.integers(1, net.shape(x)[axis] + 1))
    count = net.table([k])
    return net.add("TopK", x, count, outputs=2, axis=axis, largest=net.pick(0, 1))


@layer(rank=2)
def gemm(net: Net, x: str) -> str:
    rows, columns = net.shape(x)
    width, side = net.pick(1, 3, 5, 8), net.pick(0, 1)
    weight = net.weight((width, columns) if side else (columns, width), 1 / math.sqrt(columns))
    bias = [net.weight(net.pick((width,), (rows, 1)), 0.3)] if net.rng.random() < 0.7 else []
    return net.add("Gemm", x, weight, *bias, transB=side, alpha=net.pick(1.0, 0.5))


@layer()
def linear(net: Net, x: str) -> str:
    columns = net.shape(x)[-1]
    width = net.pick(1, 3, 4, 8)
    weight = net.weight((columns, width), 1 / math.sqrt(columns))
    return net.add("Add", net.add("MatMul", x, weight), net.weight((width,), 0.3))


@layer(rank=3)
def attention(net: Net, x: str) -> str:
    """Self-attention of one head, with an optional causal mask."""
    _, length, width = net.shape(x)
    inner = net.pick(2, 4)
    q, k, v = (
        net.add("MatMul", x, net.weight((width, inner), 1 / math.sqrt(width))) for _ in range(3)
    )
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1]))
    scores = net.add("Mul", scores, net.table(1 / math.sqrt(inner), "float64"))
    if net.rng.random() < 0.5:
        mask = np.triu(np.full((length, length), -1e4), 1)
        scores = net.add("Add", scores, net.table(mask, "float64"))
        net.values[scores] = np.clip(net.values[scores], -9, 9)  # masked scores are large
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v)


@layer(since=17)
def layer_norm(net: Net, x: str) -> str:
    axis = -int(net.rng.integers(1, min(3, len(net.shape(x))) + 1))
    shape = net.shape(x)[axis:]
    bias = [net.weight(shape, 0.3)] if net.rng.random() < 0.7 else []
    scale = net.weight(shape, 0.3, 1.0)
    return net.add("LayerNormalization", x, scale, *bias, axis=axis, epsilon=1e-3)


@layer(rank=3)
def recurrent(net: Net, x: str) -> str:
    operator, gates = net.pick(("RNN", 1), ("GRU", 3), ("LSTM", 4))
    width = net.shape(x)[-1]
    hidden = net.pick(2, 3)
    weights = [
        net.weight((1, gates * hidden, width)),
        net.weight((1, gates * hidden, hidden)),
        net.weight((1, 2 * gates * hidden), 0.3),
    ]
    extra = {"linear_before_reset": net.pick(0, 1)} if operator == "GRU" else {}
    states = net.add(operator, x, *weights, hidden_size=hidden, **extra)
    return net.add("Squeeze", states, net.table([1]))


@layer(rank=4, share=5)
def convolution(net: Net, x: str) -> str:
    _, channels, *sides = net.shape(x)
    group = net.pick(*(g for g in (1, 1, 2, channels) if channels % g == 0))
    kernel = [net.pick(1, 2, 3, 3, 5) for _ in sides]
    pads = [int(net.rng.integers(0, k)) for k in kernel]
    dilations = [net.pick(1, 1, 2) for _ in sides]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(n + 2 * p < r for n, p, r in zip(sides, pads, reach, strict=True)):
        return x
    out = group * net.pick(1, 2, 4)
    bias = [net.weight((out,), 0.3)] if net.rng.random() < 0.5 else []
    return net.add(
        *("Conv", x, net.weight((out, channels // group, *kernel)), *bias),
        kernel_shape=kernel,
        group=group,
        pads=pads * 2,
        strides=[net.pick(1, 1, 2) for _ in sides],
        dilations=dilations,
    )


@layer(rank=4)
def transposed_convolution(net: Net, x: str) -> str:
    channels = net.shape(x)[1]
    kernel, stride = net.pick(2, 3), net.pick(1, 2)
    weight = net.weight((channels, net.pick(1, 2, 4), kernel, kernel), 0.3)
    return net.add(
        "ConvTranspose", x, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[1] * 4
    )


@layer(rank=4)
def pooling(net: Net, x: str) -> str:
    operator = net.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool")
    if operator.startswith("Global"):
        return net.add(operator, x)
    sides = net.shape(x)[2:]
    kernel = [min(net.pick(2, 3), n) for n in sides]
    attributes = {"kernel_shape": kernel, "strides": [net.pick(1, 2) for _ in sides]}
    attributes["pads"] = [int(net.rng.integers(0, k)) for k in kernel] * 2
    if operator == "AveragePool":
        attributes["count_include_pad"] = net.pick(0, 1)
    return net.add(operator, x, **attributes)


@layer(rank=4, since=14)
def batch_norm(net: Net, x: str) -> str:
    channels = net.shape(x)[1]
    scale, bias = net.weight((channels,), 0.3, 1.0), net.weight((channels,), 0.3)
    mean = net.table(_rounded(net.rng.standard_normal(channels)), "float64")
    variance = net.table(_rounded(0.5 + net.rng.random(channels)), "float64")
    return net.add("BatchNormalization", x, scale, bias, mean, variance)


@layer(rank=4)
def instance_norm(net: Net, x: str) -> str:
    channels = net.shape(x)[1]
    scale, bias = net.weight((channels,), 0.3, 1.0), net.weight((channels,), 0.3)
    return net.add("InstanceNormalization", x, scale, bias, epsilon=1e-2)


@layer(rank=4)
def local_response_norm(net: Net, x: str) -> str:
    size = net.pick(*(n for n in (1, 3, 5) if n <= max(1, net.shape(x)[1])))
    return net.add("LRN", x, size=size, alpha=0.1, beta=0.75, bias=1.5)


@layer(rank=4)
def rearrangement(net: Net, x: str) -> str:
    _, channels, height, width = net.shape(x)
    if channels % 4 == 0 and net.rng.random() < 0.5:
        return net.add("DepthToSpace", x, blocksize=2, mode=net.pick("DCR", "CRD"))
    if height % 2 == 0 and width % 2 == 0:
        return net.add("SpaceToDepth", x, blocksize=2)
    return x


@layer(rank=4)
def resize(net: Net, x: str) -> str:
    mode = net.pick("nearest", "linear", "cubic")
    transform = net.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    factors = [1, 1, net.pick(0.5, 1.5, 2.0), net.pick(0.6, 1.0, 2.0)]
    if transform == "align_corners":
        factors[2:] = [2.0, 3.0]  # what a fractional size means to it is read in several ways
    if transform == "pytorch_half_pixel":
        factors[2:] = [max(1.0, factor) for factor in factors[2:]]  # nor what one element is
    if mode == "nearest":
        factors[2:] = [net.pick(0.5, 1.5, 2.0), 2.0]  # others end on borders, but for rounding
    scales = net.table(factors, "float32")
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = net.pick("floor", "ceil", "round_prefer_floor")
    return net.add("Resize", x, "", scales, **attributes)
