"""Cases of operators that are layers of networks: products, windows, norms, losses, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Drawn, drawer


@drawer("MatMul")
def matmul(draw: Draw) -> Drawn:
    a, b = _matrices(draw)
    dtype = draw.dtype()
    return Drawn([draw.values(a, dtype), draw.values(b, dtype)])


@drawer("MatMulInteger")
def matmul_integer(draw: Draw) -> Drawn:
    a, b = _matrices(draw)
    types = [draw.choice(["int8", "uint8"]) for _ in range(2)]
    inputs = [draw.values(s, t, -90, 90) for s, t in zip((a, b), types, strict=True)]
    zeros = [draw.values([], t, -5, 5) if draw.chance() else None for t in types]
    return Drawn([*inputs, *zeros])


def _matrices(draw: Draw) -> tuple[list[int], list[int]]:
    """The shapes of two factors: vectors, matrices, and batches that broadcast."""
    m, k, n = draw.integers(3, 1, 5)
    if draw.chance(0.25):
        a = [k] if draw.chance() else [m, k]
        return a, [k] if draw.chance() else [k, n]
    batch = draw.shape(0, 2, (1, 3), empty=0)
    one, other = [*batch, m, k], [*draw.broadcast(batch), k, n]
    return (one[-1:], other) if draw.chance(0.1) else (one, other)


@drawer("Gemm")
def gemm(draw: Draw) -> Drawn:
    m, k, n = draw.integers(3, 1, 5)
    dtype = draw.dtype()
    attributes = draw.some(
        alpha=draw.real(), beta=draw.real(), transA=draw.integer(0, 1), transB=draw.integer(0, 1)
    )
    a = [k, m] if attributes.get("transA") else [m, k]
    b = [n, k] if attributes.get("transB") else [k, n]
    c = draw.choice([[m, n], [n], [1, n], [m, 1], [1], []])
    has_c = draw.opset < 11 or draw.chance(0.7)
    inputs = [draw.values(s, dtype) for s in (a, b, *([c] if has_c else []))]
    return Drawn(inputs, attributes)


@drawer("Einsum")
def einsum(draw: Draw) -> Drawn:
    extents = dict(zip("abcd", draw.integers(4, 1, 4), strict=True))
    equation = draw.choice(
        [
            "ab,bc->ac",
            "ab,bc",
            "abc,acd->abd",
            "aab->b",
            "ii->i",
            "ab->ba",
            "ab->",
            "ab->b",
            "a,b->ab",
            "ab,bc,cd->ad",
            "...ab,...bc->...ac",
            "a b , b c -> a c",
            "...a->a...",
            "ba",
        ]
    )
    operands = equation.split("->")[0].replace(" ", "").split(",")
    shapes = []
    for operand in operands:
        labels = operand.replace("...", "")
        leading = [2] if "..." in operand else []
        shapes.append(leading + [extents.get(label, 3) for label in labels])
    dtype = draw.dtype()
    return Drawn([draw.values(shape, dtype) for shape in shapes], {"equation": equation})


@drawer("Det")
def det(draw: Draw) -> Drawn:
    n = draw.integer(1, 4)
    return Drawn([draw.values([*draw.shape(0, 2, empty=0), n, n], draw.dtype())])


def _windows(draw: Draw, spatial: int, kernel: list[int]) -> tuple[list[int], dict[str, Any]]:
    """The extents of an image that a window fits, and how it goes over it."""
    strides = draw.integers(spatial, 1, 3)
    dilations = draw.integers(spatial, 1, 2) if draw.has("dilations") else [1] * spatial
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    image = [w + draw.integer(0, 4) for w in window]
    attributes = draw.some(strides=strides)
    if any(d > 1 for d in dilations):
        attributes["dilations"] = dilations
    mode = draw.choice(["NOTSET", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if mode == "pads":
        attributes["pads"] = [draw.integer(0, w // 2) for w in window + window]
    elif mode != "NOTSET" or draw.chance(0.2):
        attributes["auto_pad"] = mode
    return image, attributes


@drawer("Conv")
def conv(draw: Draw) -> Drawn:
    spatial = draw.choice([1, 2, 2, 2, 3])
    kernel = draw.integers(spatial, 1, 3)
    image, attributes = _windows(draw, spatial, kernel)
    group = draw.choice([1, 1, 2, 3])
    per_group, out = draw.integers(2, 1, 3)
    dtype = draw.dtype()
    x = draw.values([draw.integer(1, 2), group * per_group, *image], dtype)
    w = draw.values([group * out, per_group, *kernel], dtype)
    bias = [draw.values([group * out], dtype)] if draw.chance() else []
    attributes |= draw.some(kernel_shape=kernel)
    return Drawn([x, w, *bias], attributes | ({"group": group} if group > 1 else {}))


@drawer("ConvTranspose")
def conv_transpose(draw: Draw) -> Drawn:
    spatial = draw.choice([1, 2, 2, 3])
    kernel, strides = draw.integers(spatial, 1, 3), draw.integers(spatial, 1, 3)
    dilations = draw.integers(spatial, 1, 2)
    image = draw.integers(spatial, 1, 4)
    group = draw.choice([1, 1, 2])
    per_group, out = draw.integers(2, 1, 3)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extra = [draw.integer(0, s - 1) for s in strides]
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": group}
    kind = draw.choice(["none", "pads", "auto", "shape"])
    if kind == "pads":
        attributes |= {"pads": [draw.integer(0, (w - 1) // 2) for w in window + window]}
        attributes |= draw.some(output_padding=extra)
    elif kind == "auto":
        attributes["auto_pad"] = draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif kind == "shape":
        sizes = [
            (n - 1) * s + w - draw.integer(0, min(2, w - 1))
            for n, s, w in zip(image, strides, window, strict=True)
        ]
        attributes["output_shape"] = sizes
        attributes |= draw.some(auto_pad=draw.choice(["SAME_UPPER", "SAME_LOWER"]))
    dtype = draw.dtype()
    x = draw.values([draw.integer(1, 2), group * per_group, *image], dtype)
    w = draw.values([group * per_group, out, *kernel], dtype)
    bias = [draw.values([group * out], dtype)] if draw.chance() else []
    return Drawn([x, w, *bias], attributes | draw.some(kernel_shape=kernel))


@drawer("DeformConv")
def deform_conv(draw: Draw) -> Drawn:
    kernel, strides, dilations = (draw.integers(2, 1, high) for high in (3, 2, 2))
    pads = draw.integers(4, 0, 2)
    groups, offsets = draw.choice([1, 2]), draw.choice([1, 2])
    channels, out = groups * offsets, groups * draw.integer(1, 2)
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    image = [w + draw.integer(0, 3) for w in window]
    size = [
        (n + pads[axis] + pads[axis + 2] - window[axis]) // strides[axis] + 1
        for axis, n in enumerate(image)
    ]
    taps = offsets * kernel[0] * kernel[1]
    dtype = draw.dtype()
    inputs = [
        draw.values([2, channels, *image], dtype),
        draw.values([out, channels // groups, *kernel], dtype),
        draw.values([2, 2 * taps, *size], dtype, -1.5, 1.5),
        draw.values([out], dtype) if draw.chance() else None,
        draw.values([2, taps, *size], dtype) if draw.chance() else None,
    ]
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    return Drawn(inputs, {**attributes, "offset_group": offsets})


@drawer("AveragePool", "MaxPool", "LpPool")
def pool(draw: Draw) -> Drawn:
    spatial = draw.choice([1, 2, 2, 2, 3])
    kernel = draw.integers(spatial, 1, 3)
    image, attributes = _windows(draw, spatial, kernel)
    if "auto_pad" not in attributes:
        attributes |= draw.some(ceil_mode=draw.integer(0, 1))
    if "pads" in attributes:
        # A window must not lie in the border alone.
        attributes["pads"] = [
            min(p, k - 1) for p, k in zip(attributes["pads"], kernel + kernel, strict=True)
        ]
    attributes |= draw.some(count_include_pad=draw.integer(0, 1), p=draw.choice([1, 2, 3]))
    special = 0.15 if draw.operator == "MaxPool" else 0.0
    x = draw.values([draw.integer(1, 2), draw.integer(1, 3), *image], draw.dtype(), special=special)
    count = 1
    has_indices = draw.operator == "MaxPool" and draw.opset >= 8 and draw.chance(0.4)
    if has_indices and np.isfinite(x.astype("float64")).all():
        count = 2
        attributes |= draw.some(storage_order=draw.integer(0, 1))
    return Drawn([x], {"kernel_shape": kernel, **attributes}, count)


@drawer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(draw: Draw) -> Drawn:
    shape = [draw.integer(1, 2), draw.integer(1, 3), *draw.shape(1, 3, empty=0)]
    return Drawn([draw.values(shape, draw.dtype())], draw.some(p=draw.choice([1, 2, 3])))


@drawer("MaxUnpool")
def max_unpool(draw: Draw) -> Drawn:
    spatial = draw.choice([1, 2, 2])
    kernel, strides = draw.integers(spatial, 1, 3), draw.integers(spatial, 1, 3)
    pads = [draw.integer(0, (k - 1) // 2) for k in kernel + kernel]
    image = draw.integers(spatial, 1, 3)
    size = [
        (n - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + spatial]
        for axis, n in enumerate(image)
    ]
    n, c = draw.integers(2, 1, 2)
    count, plane = int(np.prod(image)), int(np.prod(size))
    if count > plane:
        image, count = [1] * spatial, 1
        size = [k - pads[a] - pads[a + spatial] for a, k in enumerate(kernel)]
        plane = int(np.prod(size))
    indices = [draw.generator.permutation(plane)[:count] + plane * i for i in range(n * c)]
    inputs = [
        draw.values([n, c, *image], draw.dtype("T1")),
        np.array(indices).reshape([n, c, *image]).astype("int64"),
    ]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if draw.chance(0.3):
        larger = [s + draw.integer(0, 2) for s in size]
        inputs.append(draw.ints([n, c, *larger]))
    return Drawn(inputs, attributes)


@drawer("Col2Im")
def col2im(draw: Draw) -> Drawn:
    spatial = draw.choice([1, 2, 2])
    kernel = draw.integers(spatial, 1, 3)
    image, attributes = _windows(draw, spatial, kernel)
    attributes.pop("auto_pad", None)
    strides = attributes.get("strides", [1] * spatial)
    pads = attributes.get("pads", [0] * 2 * spatial)
    dilations = attributes.get("dilations", [1] * spatial)
    blocks = 1
    for axis, extent in enumerate(image):
        padded = extent + pads[axis] + pads[axis + spatial]
        blocks *= (padded - dilations[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1
    x = draw.values([2, draw.integer(1, 2) * int(np.prod(kernel)), blocks], draw.dtype())
    return Drawn([x, draw.ints(image), draw.ints(kernel)], attributes)


@drawer("BatchNormalization")
def batch_norm(draw: Draw) -> Drawn:
    channels, rank = draw.integer(1, 4), draw.integer(2, 5)
    shape = [draw.integer(1, 3), channels, *draw.integers(rank - 2, 1, 4)]
    dtype = draw.dtype()
    vectors = [draw.values([channels], dtype) for _ in range(3)]
    inputs = [draw.values(shape, dtype), *vectors, draw.values([channels], dtype, 0.1, 2)]
    attributes = draw.some(epsilon=draw.real(0.02, 0.1), momentum=draw.real(0.1, 0.95))
    is_training = draw.chance(0.4) and draw.opset >= 14
    if is_training:
        attributes["training_mode"] = 1
    return Drawn(inputs, attributes, 3 if is_training else 1)


@drawer("InstanceNormalization", "GroupNormalization")
def channel_norm(draw: Draw) -> Drawn:
    groups, per_group = draw.integers(2, 1, 3)
    is_group = draw.operator == "GroupNormalization"
    channels = groups * per_group
    shape = [draw.integer(1, 2), channels, *draw.shape(1, 3, (2, 4), empty=0)]
    scales = groups if is_group and draw.opset < 21 else channels
    dtype = draw.dtype()
    attributes = draw.some(epsilon=draw.real(0.02, 0.1), stash_type=1)
    attributes |= {"num_groups": groups} if is_group else {}
    return Drawn(
        [draw.values(shape, dtype), *(draw.values([scales], dtype) for _ in range(2))], attributes
    )


@drawer("LayerNormalization", "RMSNormalization")
def layer_norm(draw: Draw) -> Drawn:
    shape = draw.shape(1, 4, (1, 5), empty=0)
    axis = draw.axis(len(shape)) if draw.chance() else -1
    inner = shape[axis:]
    dtype = draw.dtype()
    attributes = draw.some(epsilon=draw.real(0.02, 0.1), stash_type=1)
    attributes |= {"axis": axis} if axis != -1 else {}
    is_layer = draw.operator == "LayerNormalization"
    inputs = [draw.values(shape, dtype), draw.values(inner, dtype)]
    inputs += [draw.values(inner, dtype)] if is_layer and draw.chance() else []
    return Drawn(inputs, attributes, draw.choice([1, 3]) if is_layer else 1)


@drawer("LRN")
def lrn(draw: Draw) -> Drawn:
    x = draw.values([draw.integer(1, 2), draw.integer(1, 6), *draw.integers(2, 1, 3)], draw.dtype())
    attributes = draw.some(alpha=draw.real(0.01, 1), beta=draw.real(0.2, 1), bias=draw.real(0.5, 2))
    return Drawn([x], {"size": draw.integer(1, 5), **attributes})


@drawer("LpNormalization")
def lp_norm(draw: Draw) -> Drawn:
    x = draw.values(draw.shape(1, empty=0), draw.dtype())
    return Drawn([x], draw.some(axis=draw.axis(x.ndim), p=draw.choice([1, 2])))


@drawer("MeanVarianceNormalization")
def mvn(draw: Draw) -> Drawn:
    x = draw.values(draw.integers(4, 2, 4), draw.dtype())
    return Drawn([x], draw.some(axes=sorted(axis % 4 for axis in draw.axes(4))))


@drawer("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(draw: Draw) -> Drawn:
    n, c = draw.integer(1, 3), draw.integer(1, 5)
    rest = draw.shape(0, 2, (1, 3), empty=0)
    dtype = draw.dtype()
    scores = draw.values([n, c, *rest], dtype)
    labels = draw.generator.integers(0, c, [n, *rest]).astype(draw.choice(["int64", "int32"]))
    attributes = draw.some(reduction=draw.choice(["none", "sum", "mean"]))
    if draw.chance(0.3):
        attributes["ignore_index"] = draw.choice([-1, 0, 100])
        if attributes["ignore_index"] != 0:
            mask = draw.generator.uniform(size=labels.shape) < 0.3
            labels = np.where(mask, attributes["ignore_index"], labels).astype(labels.dtype)
    weight = [draw.values([c], dtype, 0.2, 2)] if draw.chance() else []
    is_softmax = draw.operator == "SoftmaxCrossEntropyLoss"
    return Drawn([scores, labels, *weight], attributes, 1 + (is_softmax and draw.chance()))


@drawer("Attention")
def attention(draw: Draw) -> Drawn:
    batch, queries, keys = draw.integer(1, 2), draw.integer(1, 4), draw.integer(1, 4)
    shared, kv_heads = draw.choice([1, 1, 2]), draw.integer(1, 2)
    heads, size, v_size = shared * kv_heads, draw.choice([2, 4]), draw.choice([2, 4])
    dtype = draw.dtype("T1")
    is_flat = draw.chance(0.4)
    shapes = [(queries, heads, size), (keys, kv_heads, size), (keys, kv_heads, v_size)]
    inputs: list[Any] = []
    for length, count, width in shapes:
        shape = [batch, length, count * width] if is_flat else [batch, count, length, width]
        inputs.append(draw.values(shape, dtype))
    has_past = draw.chance(0.3)
    past = draw.integer(1, 3) if has_past else 0
    mask = None
    if draw.chance():
        target = [queries, keys + past]
        leading = draw.choice([[], [1], [batch], [batch, heads], [1, heads]])
        leading = [1, *leading] if len(leading) == 1 else leading
        mask_dtype = draw.choice(["bool", dtype])
        mask = draw.values([*leading, *target], mask_dtype)
        if mask_dtype == "bool":
            mask[..., 0] = True
    inputs.append(mask)
    if has_past:
        inputs += [draw.values([batch, kv_heads, past, w], dtype) for w in (size, v_size)]
    attributes = draw.some(
        is_causal=draw.integer(0, 1),
        scale=draw.real(0.2, 1),
        softcap=draw.choice([0.0, 2.0]),
    )
    if is_flat:
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    outputs: Any = 1
    if has_past:
        outputs = 3
    if draw.chance(0.2):
        outputs = [True, has_past, has_past, True]
        attributes |= draw.some(qk_matmul_output_mode=draw.integer(0, 3))
    return Drawn(inputs, attributes, outputs)


@drawer("RotaryEmbedding")
def rotary(draw: Draw) -> Drawn:
    batch, length, heads, size = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 2), 4
    partial = draw.choice([0, 2, 4])
    width = (partial or size) // 2
    is_flat = draw.chance(0.4)
    shape = [batch, length, heads * size] if is_flat else [batch, heads, length, size]
    dtype = draw.dtype()
    has_ids = draw.chance(0.6)
    table = [6, width] if has_ids else [batch, length, width]
    inputs = [draw.values(shape, dtype), draw.values(table, dtype), draw.values(table, dtype)]
    inputs += [draw.indices([batch, length], 6, negative=False)] if has_ids else []
    attributes = draw.some(interleaved=draw.integer(0, 1))
    attributes |= {"rotary_embedding_dim": partial} if partial else {}
    return Drawn(inputs, attributes | ({"num_heads": heads} if is_flat else {}))


@drawer("SkipLayerNormalization", domain="com.microsoft")
def skip_layer_norm(draw: Draw) -> Drawn:
    shape = draw.integers(3, 1, 4)
    width = shape[-1:]
    optional = [draw.values(width) if draw.chance() else None for _ in range(2)]
    inputs = [draw.values(shape), draw.values(shape), draw.values(width), *optional]
    outputs: Any = [True, False, False, True] if draw.chance(0.4) else 1
    return Drawn(inputs, {"epsilon": draw.real(0.02, 0.1)} if draw.chance() else {}, outputs)


@drawer("EmbedLayerNormalization", domain="com.microsoft")
def embed_layer_norm(draw: Draw) -> Drawn:
    batch, length, width = draw.integers(3, 1, 4)
    words, segments = 6, 2
    has_segments = draw.chance()
    inputs: list[Any] = [
        draw.indices([batch, length], words, "int32", False),
        draw.indices([batch, length], segments, "int32", False) if has_segments else None,
        draw.values([words, width]),
        draw.values([length + 1, width]),
        draw.values([segments, width]) if has_segments else None,
        draw.values([width]),
        draw.values([width]),
        draw.generator.integers(0, 2, [batch, length]).astype("int32") if draw.chance() else None,
    ]
    attributes = {"epsilon": draw.real(0.02, 0.1)} if draw.chance() else {}
    return Drawn(inputs, attributes, 2)


@drawer("Attention", domain="com.microsoft")
def contributed_attention(draw: Draw) -> Drawn:
    batch, length, heads, size, width = (draw.integer(1, high) for high in (2, 4, 2, 3, 5))
    hidden = heads * size
    inputs = [
        draw.values([batch, length, width]),
        draw.values([width, 3 * hidden]),
        draw.values([3 * hidden]),
    ]
    if draw.chance(0.4):
        inputs.append(np.array(draw.integers(batch, 1, length), "int32"))
    attributes: dict[str, Any] = {"num_heads": heads}
    if draw.chance(0.3):
        attributes["unidirectional"] = 1
    if draw.chance(0.3):
        attributes["scale"] = draw.real(0.2, 1)
    return Drawn(inputs, attributes)
