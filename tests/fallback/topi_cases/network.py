"""Contractions, convolutions, pooling, normalizations, images."""

from tvm import topi
from tvm.topi import image, nn, vision

from .case import Case, case, integers, reals, singles, spread

_CONTRACTIONS = [
    case("einsum", lambda a, b: topi.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 2)),
    case("einsum", lambda a: topi.einsum("ii->i", a), (3, 3), variant="diagonal"),
    case("einsum", lambda a: topi.einsum("ii", a), (3, 3), variant="trace"),
    case("einsum", lambda a, b, c: topi.einsum("ij,jk,kl->il", a, b, c), (2, 3), (3, 2), (2, 4),
         variant="three operands"),
    case("tensordot", lambda a, b: topi.tensordot(a, b, 2), (2, 3, 4), (3, 4, 2)),
    case("tensordot", lambda a, b: topi.tensordot(a, b, [[1, 0], [0, 1]]), (3, 2, 4), (2, 3, 2),
         variant="given axes"),
    case("matmul", topi.matmul, (2, 3), (3, 4)),
    case("matmul", lambda a, b: topi.matmul(a, b, True, True), (3, 2), (4, 3),
         variant="both transposed"),
    case("nn.dense", nn.dense, (2, 3), (4, 3), (4,)),
    case("nn.matmul", nn.matmul, (2, 3), (3, 4)),
    case("nn.matmul", lambda a, b: nn.matmul(a, b, transpose_b=True), (2, 1, 2, 3), (3, 4, 3),
         variant="broadcast batches"),
    case("nn.batch_matmul", nn.batch_matmul, (2, 3, 4), (2, 2, 4)),
    case("nn.batch_matmul", lambda a, b: nn.batch_matmul(a, b, transpose_b=False),
         (1, 3, 4), (2, 4, 2), variant="one batch for all"),
]  # fmt: skip


def _conv2d(*options):
    return lambda x, w: nn.conv2d_nchw(x, w, *options)


_CONVOLUTIONS = [
    case("nn.conv1d_ncw", lambda x, w: nn.conv1d_ncw(x, w, 2, 1, 2), (2, 3, 9), (4, 3, 3)),
    case("nn.conv1d_nwc", lambda x, w: nn.conv1d_nwc(x, w, 1, "SAME", 1), (2, 6, 3), (3, 3, 4)),
    case("nn.conv2d_nchw", _conv2d(1, 1, 1), (2, 3, 5, 4), (4, 3, 3, 3)),
    case("nn.conv2d_nchw", _conv2d(2, (0, 1, 2, 1), 1), (1, 2, 7, 6), (3, 2, 3, 3),
         variant="stride 2, uneven padding"),
    case("nn.conv2d_nchw", _conv2d((3, 2), 2, 2), (1, 2, 8, 7), (3, 2, 3, 2),
         variant="strides 3 and 2, dilation 2"),
    case("nn.conv2d_nchw", _conv2d(2, 0, 1), (1, 2, 5, 5), (3, 2, 1, 1), variant="1x1, stride 2"),
    case("nn.conv2d_nhwc", lambda x, w: nn.conv2d_nhwc(x, w, 2, 1, 1, "float64"),
         (1, 6, 5, 2), (3, 3, 2, 4)),
    case("nn.conv2d_hwcn", lambda x, w: nn.conv2d_hwcn(x, w, 1, "SAME", 1),
         (5, 4, 2, 2), (3, 3, 2, 3)),
    case("nn.group_conv2d_nchw", lambda x, w: nn.group_conv2d_nchw(x, w, 1, 1, 1, 2),
         (1, 4, 4, 5), (6, 2, 3, 3)),
    case("nn.group_conv2d_nchw", lambda x, w: nn.group_conv2d_nchw(x, w, 2, 1, 2, 3),
         (1, 6, 7, 6), (6, 2, 3, 3), variant="stride 2, dilation 2"),
    case("nn.group_conv2d_nhwc", lambda x, w: nn.group_conv2d_nhwc(x, w, 2, 1, 1, 2),
         (1, 5, 4, 4), (3, 3, 2, 6)),
    case("nn.group_conv1d_ncw", lambda x, w: nn.group_conv1d_ncw(x, w, 2, 1, 1, 2),
         (1, 4, 7), (6, 2, 3)),
    case("nn.conv3d_ncdhw", lambda x, w: nn.conv3d_ncdhw(x, w, 2, 1, 1, 1),
         (1, 2, 4, 3, 5), (2, 2, 3, 3, 3)),
    case("nn.conv3d_ndhwc", lambda x, w: nn.conv3d_ndhwc(x, w, 1, 0, 1, 1, "float64"),
         (1, 3, 3, 4, 2), (2, 2, 3, 2, 2)),
    case("nn.depthwise_conv2d_nchw", lambda x, w: nn.depthwise_conv2d_nchw(x, w, 2, 1, 1),
         (1, 3, 6, 5), (3, 2, 3, 3)),
    case("nn.depthwise_conv2d_nhwc", lambda x, w: nn.depthwise_conv2d_nhwc(x, w, 1, 1, 2),
         (1, 5, 6, 3), (3, 3, 3, 1)),
    case("nn.conv1d_transpose_ncw",
         lambda x, w: nn.conv1d_transpose_ncw(x, w, 2, 1, "float64", 1), (1, 3, 4), (3, 2, 3)),
    case("nn.conv2d_transpose_nchw",
         lambda x, w: nn.conv2d_transpose_nchw(x, w, (2, 3), (1, 1, 0, 1), "float64", (1, 0)),
         (1, 3, 3, 4), (3, 2, 3, 4)),
    case("nn.group_conv2d_transpose_nchw",
         lambda x, w: nn.group_conv2d_transpose_nchw(
             x, w, (2, 2), (1, 1, 1, 1), "float64", (0, 0), 2),
         (1, 4, 3, 3), (4, 2, 3, 3)),
    case("nn.conv3d_transpose_ncdhw",
         lambda x, w: nn.conv3d_transpose_ncdhw(
             x, w, (2, 1, 2), (1, 0, 1, 1, 0, 1), "float64", (0, 0, 1)),
         (1, 2, 2, 2, 2), (2, 2, 3, 2, 3)),
    case("nn.deformable_conv2d_nchw",
         lambda x, o, w: nn.deformable_conv2d_nchw(x, o, w, 1, 1, 1, 1, 1, "float64"),
         (1, 2, 4, 4), reals(1, 18, 4, 4, low=0.1, high=0.7), (2, 2, 3, 3)),
    case("nn.correlation_nchw",
         lambda a, b: nn.correlation_nchw(a, b, 1, 1, 1, 1, 1, True), (1, 2, 4, 4), (1, 2, 4, 4)),
    case("nn.correlation_nchw",
         lambda a, b: nn.correlation_nchw(a, b, 3, 2, 2, 2, 2, False), (1, 2, 5, 5), (1, 2, 5, 5),
         variant="differences, strides 2"),
    case("nn.conv2d_winograd_nchw",
         lambda x, w: nn.conv2d_winograd_nchw(x, w, 1, 1, 1, "float64"),
         (1, 2, 4, 8), (2, 2, 3, 3)),
    case("image.dilation2d_nchw", lambda x, w: image.dilation2d_nchw(x, w, 2, 1, 1),
         spread(1, 2, 6, 5), spread(2, 3, 3)),
]  # fmt: skip


def _pool2d(kind, *options, **more):
    return lambda x: nn.pool2d(x, *options, kind, **more)


_POOLING = [
    case("nn.pool1d", lambda x: nn.pool1d(x, [3], [2], [1], [1, 1], "max"), spread(2, 3, 8)),
    case("nn.pool1d", lambda x: nn.pool1d(x, [3], [1], [2], [1, 1], "avg"), (2, 3, 8),
         variant="mean, dilation 2"),
    case("nn.pool2d", _pool2d("max", [3, 2], [2, 2], [1, 1], [1, 1, 1, 0]), spread(1, 2, 6, 6)),
    case("nn.pool2d", _pool2d("avg", [2, 2], [2, 2], [1, 1], [0, 0, 0, 0]), (1, 2, 5, 5),
         variant="mean, rest uncovered"),
    case("nn.pool2d",
         _pool2d("avg", [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], ceil_mode=True, layout="NHWC",
                 count_include_pad=False),
         (1, 6, 6, 2), variant="mean without padding, ceiling, NHWC"),
    case("nn.pool3d",
         lambda x: nn.pool3d(x, [2, 2, 2], [2, 1, 2], [1, 1, 1], [0, 1, 0, 0, 0, 1], "max"),
         spread(1, 2, 4, 3, 4)),
    case("nn.pool3d",
         lambda x: nn.pool3d(x, [2, 2, 2], [1, 2, 2], [1, 1, 1], [0] * 6, "avg"),
         (1, 2, 3, 4, 4), variant="mean"),
    case("nn.global_pool", lambda x: nn.global_pool(x, "avg"), (1, 2, 3, 4)),
    case("nn.global_pool", lambda x: nn.global_pool(x, "max"), spread(1, 2, 3, 4), variant="max"),
    case("nn.adaptive_pool", lambda x: nn.adaptive_pool(x, (2, 3), "avg"), (1, 2, 5, 6)),
    case("nn.adaptive_pool", lambda x: nn.adaptive_pool(x, (3, 2), "max"), spread(1, 2, 5, 4),
         variant="max"),
    case("nn.adaptive_pool1d", lambda x: nn.adaptive_pool1d(x, (3,), "avg"), (1, 2, 7)),
    case("nn.pool_grad", lambda g, x: nn.pool_grad(g, x, [3, 3], [2, 2], [1, 1, 1, 1], "max"),
         (1, 2, 3, 3), spread(1, 2, 6, 6)),
    case("nn.pool_grad", lambda g, x: nn.pool_grad(g, x, [2, 2], [2, 2], [0] * 4, "avg"),
         (1, 2, 3, 3), (1, 2, 6, 6), variant="mean"),
]  # fmt: skip


def _batch_norm(training):
    return lambda *xs: nn.batch_norm(*xs, 1, 1e-3, True, True, training, 0.1)


_POSITIVE = reals(3, low=0.5, high=1.5)

_NORMALIZATIONS = [
    case("nn.softmax", nn.softmax, (2, 4)),
    case("nn.softmax", lambda x: nn.softmax(x, 1), (2, 4, 3), variant="middle axis"),
    case("nn.fast_softmax", nn.fast_softmax, reals(2, 4, dtype="float32")),
    case("nn.log_softmax", nn.log_softmax, (2, 4)),
    case("nn.batch_norm", _batch_norm(True), (3, 3, 2, 2), (3,), (3,), (3,), _POSITIVE),
    case("nn.batch_norm", _batch_norm(False), (3, 3, 2, 2), (3,), (3,), (3,), _POSITIVE,
         variant="inference"),
    case("nn.layer_norm", lambda x, g, b: nn.layer_norm(x, g, b, [1]),
         singles(3, 4), singles(4), singles(4)),
    case("nn.layer_norm", lambda x, g, b: nn.layer_norm(x, g, b, [1, 2]),
         singles(2, 3, 4), singles(3, 4), singles(3, 4), variant="two axes"),
    case("nn.group_norm", lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3]),
         singles(2, 4, 2, 3), singles(4), singles(4)),
    case("nn.instance_norm", lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]),
         singles(2, 3, 2, 3), singles(3), singles(3)),
    case("nn.rms_norm", lambda x, w: nn.rms_norm(x, w, [1]), singles(3, 4), singles(4)),
    case("nn.lrn", lambda x: nn.lrn(x, 3, 1, 0.1, 0.75, 2), (1, 5, 2, 2)),
    case("nn.lrn", lambda x: nn.lrn(x, 3, 3, 0.1, 0.75, 2), (1, 2, 2, 5), variant="last axis"),
]  # fmt: skip


def _resize2d(method, mode, size=(7, 5), **more):
    return lambda x: image.resize2d(
        x, [0.0] * 4, size, method=method, coordinate_transformation_mode=mode, **more
    )


_IMAGES = [
    case("nn.upsampling", lambda x: nn.upsampling(x, 2, 3), singles(1, 2, 3, 2)),
    case("nn.upsampling",
         lambda x: nn.upsampling(x, 2, 2, "NHWC", "bilinear", align_corners=True),
         singles(1, 3, 3, 2), variant="bilinear"),
    case("nn.upsampling3d", lambda x: nn.upsampling3d(x, 2, 1, 2), singles(1, 2, 2, 2, 2)),
    case("image.resize1d",
         lambda x: image.resize1d(x, [0.0] * 2, (7,), method="linear"), singles(1, 2, 4)),
    case("image.resize1d",
         lambda x: image.resize1d(x, [0.0] * 2, (3,), method="cubic"), singles(1, 2, 5),
         variant="cubic, smaller"),
    case("image.resize2d", _resize2d("linear", "half_pixel"), singles(1, 2, 3, 4)),
    case("image.resize2d", _resize2d("nearest_neighbor", "asymmetric"), singles(1, 2, 3, 4),
         variant="nearest"),
    case("image.resize2d", _resize2d("cubic", "align_corners"), singles(1, 2, 3, 4),
         variant="cubic"),
    case("image.resize3d",
         lambda x: image.resize3d(x, [0.0] * 6, (3, 4, 3), method="linear"),
         singles(1, 1, 2, 3, 2)),
    case("image.grid_sample", image.grid_sample,
         (1, 2, 4, 5), reals(1, 2, 3, 3, low=-0.9, high=0.9)),
    case("image.grid_sample",
         lambda x, g: image.grid_sample(x, g, "bicubic", padding_mode="border",
                                        align_corners=False),
         (1, 2, 4, 5), reals(1, 2, 3, 3, low=-1.2, high=1.2), variant="cubic, border"),
    case("image.grid_sample",
         lambda x, g: image.grid_sample(x, g, "bilinear", padding_mode="reflection"),
         (1, 2, 4, 5), reals(1, 2, 3, 3, low=-1.4, high=1.4), variant="reflection"),
    case("image.grid_sample",
         lambda x, g: image.grid_sample(x, g, "bilinear", layout="NCDHW"),
         (1, 2, 3, 3, 3), reals(1, 3, 2, 2, 2, low=-0.9, high=0.9), variant="3-D"),
    case("image.affine_grid", lambda a: image.affine_grid(a, (3, 4)), (2, 2, 3)),
    case("image.crop_and_resize",
         lambda x, b, i: image.crop_and_resize(x, b, i, (3, 2), extrapolation_value=0.0),
         singles(2, 2, 5, 4), singles(3, 4, low=0.05, high=0.95), integers(3, below=2)),
    case("vision.roi_align_nchw",
         lambda x, r: vision.roi_align_nchw(x, r, (2, 2), 0.5, b"avg", 2), (1, 2, 6, 6),
         reals(2, 5, low=0, high=0.9)),
    case("vision.roi_align_nchw",
         lambda x, r: vision.roi_align_nchw(x, r, (2, 2), 1.0, b"max", 2), spread(1, 2, 6, 6),
         reals(2, 5, low=0, high=0.9), variant="max"),
    case("vision.roi_pool_nchw",
         lambda x, r: vision.roi_pool_nchw(x, r, (2, 2), 1.0), spread(1, 2, 6, 6),
         integers(2, 5, below=1, dtype="float64")),
    case("vision.get_valid_counts",
         lambda x: vision.get_valid_counts(x, 0.0), spread(1, 5, 6)),
]  # fmt: skip

CATEGORIES: dict[str, list[Case]] = {
    "contractions": _CONTRACTIONS,
    "convolutions": _CONVOLUTIONS,
    "pooling": _POOLING,
    "normalizations": _NORMALIZATIONS,
    "images": _IMAGES,
}
