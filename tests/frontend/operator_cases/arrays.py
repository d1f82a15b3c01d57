"""Cases of operators that reduce, move and look up elements."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from .draw import INTEGERS, Draw, Drawn, drawer


@drawer(
    *[
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
    ],
    *["ReduceProd", "ReduceSum", "ReduceSumSquare"],
)
def reduce(draw: Draw) -> Drawn:
    dtype = draw.dtype()
    low = 0.1 if draw.operator == "ReduceLogSum" else -3
    is_extremum = draw.operator in ("ReduceMax", "ReduceMin")
    x = draw.values(draw.shape(0), dtype, low, 3, 0.15 if is_extremum else 0)
    attributes = draw.some(keepdims=draw.integer(0, 1), noop_with_empty_axes=draw.integer(0, 1))
    axes = draw.axes(x.ndim, draw.integer(0, 1))
    if draw.has("axes"):
        return Drawn([x], attributes | (draw.some(axes=axes) if axes else {}))
    return Drawn([x, draw.ints(axes) if draw.chance(0.75) else None], attributes)


@drawer("ArgMax", "ArgMin")
def arg_extremum(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, empty=0), draw.dtype())
    flags = {name: draw.integer(0, 1) for name in ("keepdims", "select_last_index")}
    axis = draw.axis(x.ndim) if draw.opset >= 11 else draw.integer(0, x.ndim - 1)
    return Drawn([x], draw.some(axis=axis, **flags))


@drawer("TopK")
def top_k(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, empty=0), draw.dtype())
    axis = draw.axis(x.ndim) if draw.opset >= 11 else draw.integer(0, x.ndim - 1)
    attributes = {"axis": axis} if draw.chance(0.7) else {}
    k = draw.integer(1, x.shape[attributes.get("axis", -1)])
    if draw.has("k"):
        return Drawn([x], {**attributes, "k": k}, 2)
    return Drawn([x, draw.ints([k])], attributes | draw.some(largest=draw.integer(0, 1)), 2)


@drawer("Concat")
def concat(draw: Draw) -> Drawn:
    shape, dtype = draw.shape(1), draw.dtype()
    axis = draw.axis(len(shape))
    shapes = []
    for _ in range(draw.integer(1, 3)):
        shape[axis] = draw.integer(0 if draw.chance(0.1) else 1, 4)
        shapes.append(list(shape))
    return Drawn([draw.fixed(draw.values(s, dtype), 0.2) for s in shapes], {"axis": axis})


@drawer("Split")
def split(draw: Draw) -> Drawn:
    shape = draw.shape(1, empty=0)
    axis = draw.axis(len(shape))
    parts = draw.integers(draw.integer(1, 3), 0 if draw.chance(0.1) else 1, 3)
    attributes = {"axis": axis} if axis % len(shape) else draw.some(axis=axis)
    shape[axis] = sum(parts)
    kind = draw.choice(["sizes", "equal", "count"])
    if kind == "count" and draw.has("num_outputs"):
        x = draw.values(shape, draw.dtype())
        count = draw.integer(1, max(1, shape[axis]))
        return Drawn([x], {**attributes, "num_outputs": count}, count)
    if kind == "equal" and not draw.has("num_outputs"):
        shape[axis] = len(parts) * draw.integer(1, 3)
        return Drawn([draw.values(shape, draw.dtype())], attributes, len(parts))
    x = draw.values(shape, draw.dtype())
    if draw.has("split"):
        return Drawn([x], {**attributes, "split": parts}, len(parts))
    return Drawn([x, draw.ints(parts)], attributes, len(parts))


@drawer("Squeeze")
def squeeze(draw: Draw) -> Drawn:
    shape = draw.shape(1)
    axes = draw.axes(len(shape))
    for axis in axes:
        shape[axis] = 1
    x = draw.values(shape, draw.dtype())
    if draw.chance(0.3):
        return Drawn([x])
    if draw.has("axes"):
        return Drawn([x], {"axes": axes})
    return Drawn([x, draw.ints(axes)])


@drawer("Unsqueeze")
def unsqueeze(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(0, 3), draw.dtype())
    count = draw.integer(1, 2)
    rank = x.ndim + count
    axes = [int(axis) for axis in draw.generator.permutation(rank)[:count]]
    if draw.opset >= 11:
        axes = [axis - rank * draw.chance() for axis in axes]
    if draw.has("axes"):
        return Drawn([x], {"axes": axes})
    return Drawn([draw.fixed(x, 0.1), draw.ints(axes)])


@drawer("Reshape")
def reshape(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.dtype())
    factors = [extent for extent in x.shape if extent != 1]
    draw.generator.shuffle(factors)
    shape = [int(extent) for extent in factors]
    if len(shape) > 1 and draw.chance():
        shape = [shape[0] * shape[1], *shape[2:]]
    shape.insert(draw.integer(0, len(shape)), 1)
    attributes = draw.some(allowzero=draw.integer(0, 1))
    if x.size and draw.chance():
        shape[draw.integer(0, len(shape) - 1)] = -1
    if x.size and not attributes.get("allowzero"):
        for axis, extent in enumerate(shape[: x.ndim]):
            if extent == x.shape[axis] and draw.chance():
                shape[axis] = 0
    return Drawn([draw.fixed(x, 0.1), draw.ints(shape)], attributes)


@drawer("Flatten")
def flatten(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.dtype())
    low = -x.ndim if draw.opset >= 11 else 0
    return Drawn([x], draw.some(axis=draw.integer(low, x.ndim)) if x.ndim else {"axis": 0})


@drawer("Transpose")
def transpose(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.dtype())
    order = [int(axis) for axis in draw.generator.permutation(x.ndim)]
    return Drawn([draw.fixed(x, 0.1)], draw.some(perm=order) if order else {})


@drawer("Expand")
def expand(draw: Draw) -> Drawn:
    shape = draw.shape()
    x = draw.values([1 if draw.chance(0.4) else extent for extent in shape], draw.dtype())
    target = [1 if s == e and draw.chance(0.3) else e for s, e in zip(x.shape, shape, strict=True)]
    target = [draw.integer(1, 3), *target] if draw.chance(0.3) else target[draw.integer(0, 1) :]
    target = target if target else [1]
    return Drawn([x, draw.ints(target)])


@drawer("Tile")
def tile(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, 3), draw.dtype())
    return Drawn([x, draw.ints(draw.integers(x.ndim, 0 if draw.chance(0.1) else 1, 3))])


@drawer("Shape", "Size")
def extents(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.dtype())
    return Drawn([x], draw.some(start=draw.integer(-5, 5), end=draw.integer(-5, 5)))


@drawer("ConstantOfShape")
def constant_of_shape(draw: Draw) -> Drawn:
    value = draw.values([1], draw.choice(draw.dtypes("T2")), special=0.2)
    attributes = draw.some(value=numpy_helper.from_array(value))
    return Drawn([draw.ints(draw.shape(0, 3))], attributes)


@drawer("Range")
def range_(draw: Draw) -> Drawn:
    dtype = draw.choice(draw.dtypes("T"))
    step = draw.choice([-2, -1, 1, 2, 3]) if dtype in INTEGERS else draw.choice([0.3, -0.7, 1.5])
    start, count = draw.integer(-5, 5), draw.integer(-1, 6)
    limit = start + step * count + (0 if dtype in INTEGERS else 0.1)
    return Drawn([draw.ints(value, dtype) for value in (start, limit, step)])


@drawer("DepthToSpace", "SpaceToDepth")
def blocks(draw: Draw) -> Drawn:
    n, c, h, w = draw.integers(4, 1, 3)
    size = draw.integer(1, 3)
    if draw.operator == "DepthToSpace":
        shape = [n, c * size * size, h, w]
        attributes = draw.some(mode=draw.choice(["DCR", "CRD"]))
    else:
        shape, attributes = [n, c, h * size, w * size], {}
        attributes = draw.some(mode=draw.choice(["DCR", "CRD"]))
    return Drawn([draw.values(shape, draw.dtype())], {"blocksize": size, **attributes})


@drawer("Slice")
def slice_(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1), draw.dtype())
    axes = draw.axes(x.ndim) if draw.chance(0.7) else list(range(draw.integer(1, x.ndim)))
    far = [-1000, 1000, 2**62]
    starts, ends = (
        [draw.choice(far) if draw.chance(0.1) else draw.integer(-7, 7) for _ in axes]
        for _ in range(2)
    )
    is_plain = axes == list(range(len(axes)))
    if draw.has("starts"):
        axes = [axis % x.ndim for axis in axes]
        return Drawn([x], {"starts": starts, "ends": ends, "axes": axes})
    dtype = draw.choice(["int32", "int64"])
    if dtype == "int32":
        starts, ends = ([min(value, 2**30) for value in values] for values in (starts, ends))
    steps = [draw.choice([-3, -2, -1, 1, 2]) for _ in axes] if draw.chance(0.6) else None
    inputs = [starts, ends, None if is_plain and draw.chance() else axes, steps]
    return Drawn(
        [draw.fixed(x, 0.1), *(None if v is None else draw.ints(v, dtype) for v in inputs)]
    )


@drawer("Pad")
def pad(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, extents=(2, 5), empty=0), draw.dtype())
    modes = ["constant", "reflect", "edge", *(["wrap"] if draw.opset >= 19 else [])]
    mode = draw.choice(modes)
    axes = list(range(x.ndim))
    in_input = not draw.has("pads")
    if in_input and draw.opset >= 18 and draw.chance(0.4):
        axes = draw.axes(x.ndim)
    most = [2 if mode == "constant" else x.shape[axis] - 1 for axis in axes]
    low = -1 if draw.chance(0.3) else 0
    pads = [draw.integer(low, limit) for limit in most + most]
    attributes = {"mode": mode} if mode != "constant" else draw.some(mode=mode)
    if not in_input:
        return Drawn([x], {"pads": pads, **attributes, **draw.some(value=draw.real())})
    value = draw.fixed(draw.values([], str(x.dtype))) if draw.chance() else None
    has_axes = axes != list(range(x.ndim))
    return Drawn([x, draw.ints(pads), value, draw.ints(axes) if has_axes else None], attributes)


@drawer("CenterCropPad")
def center_crop_pad(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, 3, empty=0), draw.dtype())
    axes = draw.axes(x.ndim)
    attributes = {"axes": axes} if draw.chance() else {}
    count = len(axes) if attributes else x.ndim
    return Drawn([x, draw.ints(draw.integers(count, 1, 7))], attributes)


@drawer("Gather")
def gather(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, empty=0), draw.dtype())
    axis = draw.axis(x.ndim)
    dtype = draw.choice(["int32", "int64"])
    indices = draw.indices(draw.shape(0, 2), x.shape[axis], dtype, draw.opset >= 11)
    attributes = {"axis": axis} if axis % x.ndim else draw.some(axis=axis)
    return Drawn([draw.fixed(x, 0.1), draw.fixed(indices, 0.5)], attributes)


@drawer("GatherElements", "ScatterElements", "Scatter")
def elements(draw: Draw) -> Drawn:
    shape = draw.shape(1, 3, empty=0)
    dtype = draw.dtype()
    axis = draw.axis(len(shape))
    smaller = [draw.integer(1, extent) for extent in shape]
    is_scatter = draw.operator != "GatherElements"
    reduction = "none"
    if is_scatter and draw.has("reduction"):
        kinds = ["none", "add", "mul", *(["max", "min"] if draw.opset >= 18 else [])]
        reduction = draw.choice(kinds if dtype != "bool" else ["none"])
    index_dtype = draw.choice(["int32", "int64"])
    negative = draw.opset >= 11
    if is_scatter and reduction == "none":  # of repeated indices any may win
        indices = _without_repeats(draw, smaller, shape[axis], axis)
    else:
        smaller[axis] = draw.integer(1, 4)
        indices = draw.indices(smaller, shape[axis], "int64", negative)
    x, indices = draw.values(shape, dtype), indices.astype(index_dtype)
    attributes = {"axis": axis} if axis % len(shape) else draw.some(axis=axis)
    if reduction != "none":
        attributes["reduction"] = reduction
    inputs = [x, draw.fixed(indices, 0.3)]
    return Drawn([*inputs, draw.values(smaller, dtype)] if is_scatter else inputs, attributes)


def _without_repeats(draw: Draw, shape: list[int], extent: int, axis: int) -> np.ndarray:
    """Indices into an axis of which no two along it are equal."""
    noise = draw.generator.uniform(
        size=[*shape[: axis % len(shape)], extent, *_behind(shape, axis)]
    )
    order = np.argsort(noise, axis=axis)
    kept = np.take(order, range(shape[axis]), axis=axis)
    return kept - extent * (draw.generator.uniform(size=kept.shape) < 0.3) * (draw.opset >= 11)


def _behind(shape: list[int], axis: int) -> list[int]:
    return shape[axis % len(shape) + 1 :]


@drawer("GatherND")
def gather_nd(draw: Draw) -> Drawn:
    shape = draw.shape(1, empty=0)
    batch = draw.integer(0, len(shape) - 1) if draw.has("batch_dims") and draw.chance() else 0
    depth = draw.integer(1, len(shape) - batch)
    outer = draw.integers(draw.integer(0, 2), 1, 3)
    indices = np.stack(
        [draw.indices([*shape[:batch], *outer], shape[batch + axis]) for axis in range(depth)], -1
    )
    attributes = {"batch_dims": batch} if batch else {}
    return Drawn([draw.values(shape, draw.dtype()), draw.fixed(indices, 0.4)], attributes)


@drawer("ScatterND")
def scatter_nd(draw: Draw) -> Drawn:
    shape, dtype = draw.shape(1, 3, empty=0), draw.dtype()
    depth = draw.integer(1, len(shape))
    reduction = "none"
    if draw.has("reduction") and draw.chance(0.7) and dtype != "bool":
        reduction = draw.choice(["add", "mul", *(["max", "min"] if draw.opset >= 18 else [])])
    count = int(np.prod(shape[:depth]))
    chosen = draw.generator.permutation(count)[: draw.integer(1, min(count, 4))]
    if reduction != "none":
        chosen = draw.generator.integers(0, count, 4)
    indices = np.stack(np.unravel_index(chosen, shape[:depth]), -1)
    if draw.chance():
        indices = np.where(draw.chance(), indices - np.array(shape[:depth]), indices)
    updates = draw.values([len(chosen), *shape[depth:]], dtype)
    attributes = {"reduction": reduction} if reduction != "none" else {}
    return Drawn([draw.values(shape, dtype), draw.fixed(indices, 0.3), updates], attributes)


@drawer("OneHot")
def one_hot(draw: Draw) -> Drawn:
    depth = draw.integer(1, 5)
    shape = draw.shape(0, 3)
    dtype = draw.choice(["int64", "int32", "float32"])
    indices = draw.indices(shape, depth + 1, "int64").astype(dtype)
    attributes = draw.some(axis=draw.axis(len(shape) + 1))
    values = draw.values([2], draw.choice(draw.dtypes("T3")))
    shaped = np.array(depth if draw.chance() else [depth], draw.choice(["int64", "float32"]))
    return Drawn([indices, draw.fixed(shaped), values], attributes)


@drawer("Compress")
def compress(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, 3, empty=0), draw.dtype())
    attributes = draw.some(axis=draw.axis(x.ndim))
    extent = x.shape[attributes["axis"]] if attributes else x.size
    condition = draw.values([draw.integer(1, extent)], "bool")
    return Drawn([x, draw.fixed(condition, 0.7)], attributes)


@drawer("NonZero")
def non_zero(draw: Draw) -> Drawn:
    return Drawn([draw.fixed(draw.values(draw.shape(1, empty=0), draw.dtype(), -1, 1), 0.2)])


@drawer("Unique")
def unique(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, 3, empty=0), draw.dtype(), 0, 3)
    x = x if x.dtype == bool else np.round(x.astype("float32")).astype(x.dtype)
    return Drawn(
        [x], draw.some(axis=draw.axis(x.ndim), sorted=draw.integer(0, 1)), draw.integer(1, 4)
    )


@drawer("ReverseSequence")
def reverse_sequence(draw: Draw) -> Drawn:
    shape = draw.shape(2, empty=0)
    time = draw.integer(0, 1)
    lengths = draw.generator.integers(1, shape[time] + 1, shape[1 - time])
    attributes = {"time_axis": time, "batch_axis": 1 - time} if time else {}
    return Drawn([draw.values(shape, draw.dtype()), draw.fixed(lengths, 0.5)], attributes)


@drawer("TensorScatter")
def tensor_scatter(draw: Draw) -> Drawn:
    shape = draw.shape(3, 4, extents=(2, 5), empty=0)
    axis = draw.choice([*range(1, len(shape)), *range(1 - len(shape), 0)])
    update = list(shape)
    update[axis] = draw.integer(1, shape[axis])
    mode = draw.choice(["linear", "circular"])
    most = shape[axis] - update[axis] if mode == "linear" else shape[axis] - 1
    starts = draw.generator.integers(0, most + 1, shape[0])
    dtype = draw.dtype()
    inputs = [draw.values(shape, dtype), draw.values(update, dtype)]
    return Drawn([*inputs, starts if draw.chance(0.8) else None], {"axis": axis, "mode": mode})


@drawer("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_features(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, 3, empty=0), draw.choice(["float32", "int64"]))
    return Drawn([x, draw.indices([1, draw.integer(1, 4)], x.shape[-1], negative=False)])


@drawer("Constant")
def constant(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(), draw.choice(["float32", "int64", "bool", "float64"]))
    kinds = {
        "value": numpy_helper.from_array(x),
        "value_float": draw.real(),
        "value_floats": [draw.real(), draw.real()],
        "value_int": draw.integer(-5, 5),
        "value_ints": draw.integers(3, -5, 5),
    }
    name = draw.choice([kind for kind in kinds if draw.has(kind)])
    return Drawn([], {name: kinds[name]})
