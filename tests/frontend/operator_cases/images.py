"""Cases of operators that sample images, and of those of signals."""

from __future__ import annotations

from typing import Any

import numpy as np

from .draw import Draw, Drawn, drawer


@drawer("Resize")
def resize(draw: Draw) -> Drawn:
    mode = draw.choice(["nearest", "linear", "linear", *(["cubic"] if draw.opset >= 11 else [])])
    spatial = 2 if mode == "cubic" else draw.choice([1, 2, 2, 3])
    shape = [draw.integer(1, 2), draw.integer(1, 2), *draw.integers(spatial, 2, 5)]
    x = draw.values(shape, draw.dtype("T1" if draw.opset >= 11 else "T"))
    if mode != "nearest" and x.dtype.kind in "iu":  # whole numbers, or far from them
        x *= 4
    if draw.opset < 11:
        scales = [1.0, 1.0, *(draw.choice([0.5, 1.0, 1.5, 2.0]) for _ in range(spatial))]
        return Drawn([x, draw.ints(scales, "float32")], {"mode": mode})
    transforms = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
    transforms += ["tf_crop_and_resize", *(["half_pixel_symmetric"] if draw.opset >= 19 else [])]
    roundings = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
    transform = draw.choice(transforms)
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes |= draw.some(nearest_mode=draw.choice(roundings))
    if mode == "cubic":
        attributes |= draw.some(cubic_coeff_a=-0.5, exclude_outside=draw.integer(0, 1))
    if mode != "nearest" and transform == "half_pixel":
        attributes |= draw.some(antialias=draw.integer(0, 1))
    region = draw.ints([], "float32") if draw.opset < 13 else None
    axes = list(range(len(shape)))
    if draw.has("axes") and draw.chance(0.4):
        axes = axes[2:] if draw.chance() else [axis - len(shape) for axis in axes[2:]]
        attributes["axes"] = axes
    if transform == "tf_crop_and_resize":
        starts = [0.0 if axis in (0, 1) else draw.real(0, 0.4) for axis in axes]
        ends = [1.0 if axis in (0, 1) else draw.real(0.5, 1.3) for axis in axes]
        region = draw.ints(starts + ends, "float32")
        attributes |= draw.some(extrapolation_value=draw.real())
    if draw.chance():
        choices = [0.4, 0.6, 1.0, 1.5, 2.0, 2.3]
        scales = [1.0 if axis in (0, 1) else draw.choice(choices) for axis in axes]
        return Drawn([x, region, draw.ints(scales, "float32")], attributes)
    no_scales = draw.ints([], "float32") if draw.opset < 13 else None
    sizes = [shape[axis] if axis in (0, 1) else draw.integer(1, 8) for axis in axes]
    if draw.has("keep_aspect_ratio_policy") and draw.chance(0.4) and len(axes) == spatial:
        policies = ["not_larger", "not_smaller", "stretch"]
        attributes["keep_aspect_ratio_policy"] = draw.choice(policies)
    return Drawn([x, region, no_scales, draw.ints(sizes)], attributes)


@drawer("Upsample")
def upsample(draw: Draw) -> Drawn:
    shape = [draw.integer(1, 2), draw.integer(1, 2), *draw.integers(2, 2, 4)]
    scales = [1.0, 1.0, *(draw.choice([1.0, 1.5, 2.0, 3.0]) for _ in range(2))]
    x, mode = draw.values(shape, draw.dtype()), draw.choice(["nearest", "linear"])
    if draw.has("scales"):
        return Drawn([x], {"mode": mode, "scales": scales})
    return Drawn([x, draw.ints(scales, "float32")], {"mode": mode})


@drawer("GridSample")
def grid_sample(draw: Draw) -> Drawn:
    spatial = 2 if draw.opset < 20 else draw.choice([2, 2, 3])
    n, c = draw.integers(2, 1, 2)
    image, size = draw.integers(spatial, 2, 4), draw.integers(spatial, 1, 3)
    old = draw.opset < 20
    modes = ["bilinear", "nearest", "bicubic"] if old else ["linear", "nearest", "cubic"]
    mode = draw.choice(modes if spatial == 2 else modes[:2])
    attributes = {"mode": mode} | draw.some(
        padding_mode=draw.choice(["zeros", "border", "reflection"]),
        align_corners=draw.integer(0, 1),
    )
    dtype = draw.dtype("T1")
    x = draw.values([n, c, *image], dtype)
    grid_dtype = draw.dtype("T2") if draw.chance(0.3) else "float32"
    return Drawn([x, draw.values([n, *size, spatial], grid_dtype, -1.4, 1.4)], attributes)


@drawer("AffineGrid")
def affine_grid(draw: Draw) -> Drawn:
    spatial = draw.choice([2, 3])
    theta = draw.values([draw.integer(1, 2), spatial, spatial + 1], draw.dtype("T1"))
    size = [len(theta), 1, *draw.integers(spatial, 1, 4)]
    return Drawn([theta, draw.ints(size)], draw.some(align_corners=draw.integer(0, 1)))


@drawer("RoiAlign", "MaxRoiPool")
def regions(draw: Draw) -> Drawn:
    is_max_pool = draw.operator == "MaxRoiPool"
    shape = [draw.integer(1, 3), draw.integer(1, 2), *draw.integers(2, 3, 6)]
    dtype = draw.dtype("T" if is_max_pool else "T1")
    count = draw.integer(1, 3)
    scale = draw.choice([0.25, 0.5, 1.0, 1.25])
    corners = draw.values([count, 4], "float32", -2, 6 / scale)
    if draw.chance(0.8):
        corners = np.concatenate([np.sort(corners[:, i::2], axis=1) for i in (0, 1)], axis=1)
        corners = corners[:, [0, 2, 1, 3]]
    corners = corners.astype(dtype)
    images = draw.indices([count], shape[0], negative=False)
    x = draw.values(shape, dtype)
    attributes = {"spatial_scale": scale} if scale != 1 else {}
    if is_max_pool:
        rois = np.concatenate([images[:, None].astype(dtype), corners], axis=1)
        return Drawn([x, rois], {"pooled_shape": draw.integers(2, 1, 3), **attributes})
    attributes |= draw.some(
        mode=draw.choice(["avg", "max"]),
        output_height=draw.integer(1, 3),
        output_width=draw.integer(1, 3),
        sampling_ratio=draw.integer(0, 3),
        coordinate_transformation_mode=draw.choice(["half_pixel", "output_half_pixel"]),
    )
    return Drawn([x, corners, draw.fixed(images, 0.5)], attributes)


@drawer("NonMaxSuppression")
def suppression(draw: Draw) -> Drawn:
    batch, classes, boxes = draw.integer(1, 2), draw.integer(1, 2), draw.integer(1, 6)
    centered = draw.integer(0, 1)
    ends = draw.values([batch, boxes, 4], low=0, high=4)
    ends[..., 2:] += 0 if draw.chance(0.2) else ends[..., :2]
    most = draw.choice([0, 1, 2, 3, 2**31 - 1, 10**12])
    limits = [most, draw.real(0.1, 0.7), draw.real(0, 0.4)]
    inputs: list[Any] = [ends, draw.generator.permutation(batch * classes * boxes) / 40.0]
    inputs[1] = inputs[1].reshape([batch, classes, boxes]).astype("float32")
    inputs.append(draw.ints(limits[0]))
    inputs += [draw.ints(limit, "float32") for limit in limits[1:]]
    return Drawn(inputs[: draw.integer(3, 5)], draw.some(center_point_box=centered))


@drawer("DFT")
def dft(draw: Draw) -> Drawn:
    rank = draw.integer(1, 2)
    inner = draw.integers(rank, 2, 5)
    width = draw.choice([1, 2])
    x = draw.values([draw.integer(1, 2), *inner, width], draw.dtype("T1"))
    axis = draw.integer(1, rank)
    axis = axis - (rank + 2) if draw.chance(0.3) else axis
    length = draw.ints(draw.integer(1, 6)) if draw.chance(0.4) else None
    inverse = draw.integer(0, 1)
    attributes = draw.some(inverse=inverse)
    if not attributes.get("inverse") and width == 1:
        attributes |= draw.some(onesided=draw.integer(0, 1))
    if draw.has("axis"):
        return Drawn([x, length], attributes | {"axis": axis})
    return Drawn([x, length, draw.ints(axis)], attributes)


@drawer("STFT")
def stft(draw: Draw) -> Drawn:
    length, frame, step = draw.integer(8, 12), draw.integer(2, 6), draw.integer(1, 3)
    dtype = draw.dtype("T1")
    signal = draw.values([draw.integer(1, 2), length, draw.choice([1, 1, 2])], dtype)
    has_window = draw.chance(0.6)
    window = draw.values([frame], dtype) if has_window else None
    has_length = not has_window or draw.chance()
    attributes = draw.some(onesided=draw.integer(0, 1)) if signal.shape[-1] == 1 else {}
    attributes = attributes or {"onesided": 0}
    inputs = [signal, draw.ints(step), window, draw.ints(frame) if has_length else None]
    return Drawn(inputs, attributes)


@drawer("HannWindow", "HammingWindow", "BlackmanWindow")
def window(draw: Draw) -> Drawn:
    attributes = draw.some(periodic=draw.integer(0, 1))
    return Drawn([draw.ints(draw.integer(2, 8))], attributes)
