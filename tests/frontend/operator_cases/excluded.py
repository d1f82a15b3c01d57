"""Cases on which onnxruntime, or the standard's reference, is not to be followed, and why.

Where the reference is right, it is asked instead (`_DEPARTURES`); where nobody is, a disagreement
does not count (`_RULES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from .case import Case
from .draw import FLOATS

_BY_REFERENCE = "onnx.reference"

_TO_INTEGERS = ("Cast", "CastLike", "DynamicQuantizeLinear", "QuantizeLinear")
_RECURRENT = ("RNN", "GRU", "LSTM")
_OF_PRODUCTS = (
    *("EmbedLayerNormalization", "Gemm", "GroupNormalization", "InstanceNormalization"),
    *("LayerNormalization", "LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    *("RotaryEmbedding", "SkipLayerNormalization"),
)


def exclusion(case: Case, oracle: str) -> str:
    """Why a case that disagrees with its oracle does not count; nothing if it does."""
    for reason, applies in _RULES.items():
        if applies(case, oracle):
            return reason
    return ""


def onnxruntime_departs(case: Case) -> bool:
    """Whether onnxruntime departs from the standard on a case, and its reference does not."""
    return any(applies(case) for applies in _DEPARTURES.values())


def gradient_exclusion(case: Case) -> str:
    """Why gradients of a case that disagree do not count; nothing if they do."""
    return next((reason for reason, applies in _OF_GRADIENTS.items() if applies(case)), "")


def _has_same_padding_of_dilated_windows(case: Case, oracle: str) -> bool:
    dilations = case.attributes.get("dilations", ())
    is_same = str(case.attributes.get("auto_pad", "")).startswith("SAME")
    return case.operator.endswith("Pool") and is_same and any(d > 1 for d in dilations)


def _is_scaled_to_a_fraction(case: Case, oracle: str) -> bool:
    scales = case.constants.get("x2", np.zeros(0))
    mode = case.attributes.get("coordinate_transformation_mode")
    if case.operator != "Resize" or mode not in ("align_corners", "tf_crop_and_resize"):
        return False
    if case.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return True  # by one scale for all axes
    extents = np.array(case.arrays["x0"].shape)[
        list(case.attributes.get("axes", range(-scales.size, 0)))
    ]
    return bool(scales.size) and bool((scales * extents % 1 != 0).any())


def _floats(case: Case) -> list[np.ndarray]:
    """The float inputs and constants of a case, in float64."""
    arrays = {**case.arrays, **case.constants}.values()
    return [array.astype("float64") for array in arrays if str(array.dtype) in FLOATS]


def _operand(case: Case, index: int) -> np.ndarray:
    """An input or constant of a case, in float64."""
    return {**case.arrays, **case.constants}[f"x{index}"].astype("float64")


def _has_nan(case: Case) -> bool:
    return any(bool(np.isnan(array).any()) for array in _floats(case))


def _has_infinity(case: Case) -> bool:
    return any(bool(np.isinf(array).any()) for array in _floats(case))


def _overflows(case: Case) -> bool:
    """Whether a number is so large that its square overflows in its dtype."""
    arrays = {**case.arrays, **case.constants}.values()
    return any(
        bool((np.abs(array.astype("float64")) > ml_dtypes.finfo(array.dtype).max ** 0.5).any())
        for array in arrays
        if str(array.dtype) in FLOATS
    )


def _keeps_an_extent(case: Case) -> bool:
    """Whether a Resize to a region leaves the extent of one of its axes as it is."""
    shape = np.array(case.arrays["x0"].shape)
    start, end = np.split(case.constants["x1"], 2)
    shape = shape[list(case.attributes.get("axes", range(shape.size)))]
    sizes, scales = case.constants.get("x3"), case.constants.get("x2")
    is_kept = scales == 1 if sizes is None else sizes == shape
    return bool((is_kept & ((start != 0) | (end != 1))).any())


def _has_no_integer(case: Case) -> bool:
    """Whether a float becomes an integer that its dtype does not have, or NaN becomes one."""
    if case.operator.startswith("Cast"):
        return _has_nan(case) or _overflows(case)
    scale = {**case.arrays, **case.constants}.get("x1")
    return _has_nan(case) or (scale is not None and bool(np.isinf(scale.astype("float64")).any()))


def _divides_by_zero(case: Case) -> bool:
    scale = {**case.arrays, **case.constants}.get("x1")
    return scale is not None and bool((scale.astype("float64") == 0).any())


def _begins_with_no_number(case: Case) -> bool:
    """Whether the first element of an image is NaN or infinite."""
    images = _operand(case, 0)
    return not np.isfinite(images.reshape(*images.shape[:2], -1)[..., :1]).all()


def _normalized(case: Case) -> int:
    """How many elements a MeanVarianceNormalization takes together."""
    return math.prod(_operand(case, 0).shape[a] for a in case.attributes.get("axes", (0, 2, 3)))


def _dtype(case: Case) -> str:
    return str(next(iter({**case.arrays, **case.constants}.values())).dtype)


_DEPARTURES: dict[str, Callable[[Case], bool]] = {
    "onnxruntime's extrema drop NaN along some axes": (
        lambda case: case.operator in ("ReduceMax", "ReduceMin") and _has_nan(case)
    ),
    "onnxruntime's mean of no floats is 0; that of the standard's reference and graphgrad is NaN": (
        lambda case: (
            case.operator == "ReduceMean" and not case.arrays["x0"].size and _dtype(case) in FLOATS
        )
    ),
    "onnxruntime's ArgMax, ArgMin and Hardmax pass over NaN; the standard's reference and "
    "graphgrad take the first NaN for the extreme, as numpy and PyTorch do": (
        lambda case: case.operator in ("ArgMax", "ArgMin", "Hardmax") and _has_nan(case)
    ),
    "onnxruntime's softmax is finite where the largest number is infinite; that of the standard's "
    "reference and graphgrad is NaN, as that of numpy and PyTorch": (
        lambda case: (
            case.operator in ("Softmax", "LogSoftmax") and case.opset >= 13 and _has_infinity(case)
        )
    ),
    "onnxruntime's Sigmoid of float32 is wrong by up to 1e-7, however small it is": (
        lambda case: (
            case.operator == "Sigmoid"
            and _dtype(case) == "float32"
            and any(bool((array < -5).any()) for array in _floats(case))
        )
    ),
    "onnxruntime multiplies the first element of an image by 0 for what lies outside of it, which "
    "makes NaN of infinity": (
        lambda case: case.operator == "DeformConv" and _begins_with_no_number(case)
    ),
    "onnxruntime's causal order of queries behind a past ends at the last key, the standard's at "
    "the key of the query": (
        lambda case: (
            case.operator == "Attention"
            and case.attributes.get("is_causal") == 1
            and "x4" in {**case.arrays, **case.constants}
            and _operand(case, 0).shape[-2] != _operand(case, 1).shape[-2]
        )
    ),
}

_OF_GRADIENTS: dict[str, Callable[[Case], bool]] = {
    "two elements become 1 and -1 whatever they are: their gradients are the rounding of zeros": (
        lambda case: case.operator == "MeanVarianceNormalization" and _normalized(case) <= 2
    ),
    "a scale of 0.4 is 2 / 5 to graphgrad, and its float32 to the standard's reference": (
        lambda case: (
            case.operator in ("Resize", "Upsample")
            and _dtype(case) == "float64"
            and case.constants.get("x2", np.zeros(0)).size > 0
        )
    ),
}

_RULES: dict[str, Callable[[Case, str], bool]] = {
    "onnxruntime leaves dilations out where it computes pads SAME of a pooling, so that its output "
    "is smaller than the standard's ceil(extent / stride)": _has_same_padding_of_dilated_windows,
    "onnxruntime's dropout of opset 10 returns a mask of False in inference form": (
        lambda case, oracle: case.operator == "Dropout" and case.opset in (10, 11)
    ),
    "onnxruntime divides by the resized extent, the standard's reference by scale · extent, which "
    "is no integer": _is_scaled_to_a_fraction,
    "onnxruntime's pooling keeps or drops a NaN by where in the window it is; graphgrad keeps it, "
    "as PyTorch does": (
        lambda case, oracle: (
            case.operator in ("GlobalMaxPool", "MaxPool", "RoiAlign")
            and bool(np.isnan(case.arrays["x0"]).any())
        )
    ),
    "onnxruntime's maximum of nothing but −∞ is the lowest float32": (
        lambda case, oracle: (
            case.operator in ("GlobalMaxPool", "MaxPool")
            and _dtype(case) == "float32"
            and bool(np.isneginf(case.arrays["x0"]).any())
            and oracle != _BY_REFERENCE
        )
    ),
    "onnx.reference begins behind the first element where a stride of pads SAME is longer than the "
    "window": (
        lambda case, oracle: (
            case.operator.endswith("Pool")
            and str(case.attributes.get("auto_pad", "")).startswith("SAME")
            and oracle == _BY_REFERENCE
        )
    ),
    "onnx.reference turns what is beyond int32 into its lowest before it adds the zero point": (
        lambda case, oracle: (
            case.operator == "QuantizeLinear"
            and (_overflows(case) or _divides_by_zero(case))
            and oracle == _BY_REFERENCE
        )
    ),
    "both elements of a Blackman window of two are rounding errors of 0": (
        lambda case, oracle: (
            case.operator == "BlackmanWindow" and {**case.arrays, **case.constants}["x0"].max() <= 2
        )
    ),
    "onnxruntime leaves an axis counted from the end as it is, where the aspect ratio is kept": (
        lambda case, oracle: (
            case.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
            and min(case.attributes.get("axes", [0])) < 0
        )
    ),
    "where a coordinate of NaN lies is told by nobody": (
        lambda case, oracle: (
            (case.operator == "GridSample" and _has_nan(case))
            or (case.operator == "DeformConv" and bool(np.isnan(_operand(case, 2)).any()))
        )
    ),
    "onnxruntime takes what an infinite offset points to for 0; graphgrad's is NaN, so that it is "
    "seen": (
        lambda case, oracle: (
            case.operator == "DeformConv" and bool(np.isinf(_operand(case, 2)).any())
        )
    ),
    "onnxruntime takes no region along an axis whose extent stays as it is": (
        lambda case, oracle: (
            case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
            and _keeps_an_extent(case)
        )
    ),
    "onnx.reference multiplies what is infinite by a coefficient of 0, where graphgrad leaves the "
    "term out": (
        lambda case, oracle: (
            case.operator in ("Adagrad", "Adam", "Momentum") and _has_infinity(case)
        )
    ),
    "which of several NaN are the same is told by nobody": (
        lambda case, oracle: case.operator == "Unique" and _has_nan(case)
    ),
    "the form with a tanh cancels where its results are small, and onnxruntime's tanh goes beyond "
    "-1": (
        lambda case, oracle: (
            case.operator in ("FastGelu", "Gelu") and min(a.min() for a in _floats(case)) < -3
        )
    ),
    "a bound that Clip leaves out before opset 13 is the largest float, which makes infinities "
    "finite; graphgrad keeps them, as newer opsets do, so that they are seen": (
        lambda case, oracle: (
            case.operator == "Clip"
            and case.opset < 13
            and not {"min", "max"} <= set(case.attributes)
            and not {"x1", "x2"} <= {*case.arrays, *case.constants}
            and bool(np.isinf(case.arrays["x0"]).any())
        )
    ),
    "where an axis of one element lies is told by nobody for align_corners: onnxruntime, the "
    "standard's reference and PyTorch (whose 0 is followed) take three coordinates": (
        lambda case, oracle: (
            case.operator == "AffineGrid"
            and case.attributes.get("align_corners") == 1
            and bool((case.constants["x1"][2:] == 1).any())
        )
    ),
    "onnxruntime's clip and some activations of a recurrent layer make a number of NaN": (
        lambda case, oracle: case.operator in _RECURRENT and _has_nan(case)
    ),
    "onnxruntime's Shrink and ThresholdedRelu make 0 of NaN; graphgrad keeps it, as PyTorch's "
    "hardshrink and threshold do": (
        lambda case, oracle: case.operator in ("Shrink", "ThresholdedRelu") and _has_nan(case)
    ),
    "where NaN ranks among scores, and what a box of NaN overlaps, is told by nobody": (
        lambda case, oracle: case.operator == "NonMaxSuppression" and _has_nan(case)
    ),
    "infinity times the sine of 0 is NaN; a fast transform leaves that product out": (
        lambda case, oracle: case.operator in ("DFT", "STFT") and _overflows(case)
    ),
    "onnxruntime's softmax is finite where the largest number is infinite; graphgrad's is NaN, as "
    "that of numpy and PyTorch; the standard's reference has it only since opset 13": (
        lambda case, oracle: (
            case.operator in ("Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss")
            and _has_infinity(case)
            and oracle != _BY_REFERENCE
        )
    ),
    "the standard leaves open which integer NaN is, and a float that is none of the dtype's": (
        lambda case, oracle: case.operator in _TO_INTEGERS and _has_no_integer(case)
    ),
    "onnxruntime multiplies a neighbor of weight 0, which may not be finite; graphgrad does not "
    "read it": (
        lambda case, oracle: (
            case.operator in ("Resize", "RoiAlign", "Upsample")
            and (_has_nan(case) or _has_infinity(case))
        )
    ),
    "onnx.reference rounds each sum of half precision": (
        lambda case, oracle: (
            case.operator in ("Sum", "Mean")
            and _dtype(case) in ("float16", "bfloat16")
            and oracle == _BY_REFERENCE
        )
    ),
    "a recurrent layer's formula multiplies a gate of 0 by a state that is infinite, or overflows, "
    "or does not, by how it is arranged": (
        lambda case, oracle: (
            case.operator in _RECURRENT and (_has_infinity(case) or _overflows(case))
        )
    ),
    "onnxruntime's regions of volumes are not those of the standard's formula and reference": (
        lambda case, oracle: (
            case.operator == "Resize"
            and case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
            and case.attributes["mode"] == "linear"
            and case.arrays["x0"].ndim == 5
        )
    ),
    "graphgrad puts zeros between and around the elements of a transposed convolution, which a "
    "weight that is NaN or infinite makes NaN": (
        lambda case, oracle: (
            case.operator == "ConvTranspose" and not np.isfinite(_operand(case, 1)).all()
        )
    ),
    "products that overflow are infinite or cancel to NaN by the order in which they are added": (
        lambda case, oracle: (
            case.operator in ("ConvTranspose", "Det")
            and _overflows(case)
            and not _has_infinity(case)
        )
    ),
    "onnxruntime's cubic interpolation reads what lies outside of the image, the standard "
    "extrapolates": (
        lambda case, oracle: (
            case.operator == "Resize"
            and case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
            and case.attributes["mode"] == "cubic"
            and bool((case.constants["x1"] > 1).any())
        )
    ),
    "onnx.reference sorts what should stay in the order in which it comes first": (
        lambda case, oracle: (
            case.operator == "Unique"
            and case.attributes.get("sorted") == 0
            and oracle == _BY_REFERENCE
        )
    ),
    "onnxruntime multiplies scale and mean before it subtracts them, so that infinities cancel to "
    "NaN": (lambda case, oracle: case.operator == "BatchNormalization" and _overflows(case)),
    "whether a product of large numbers overflows depends on the dtype in which it is computed, "
    "and a norm of them is its bias or NaN; graphgrad keeps NaN, as PyTorch does, so that it is "
    "seen": (lambda case, oracle: case.operator in _OF_PRODUCTS and _overflows(case)),
    "onnxruntime masks with the lowest number, the standard with −∞, which is seen in the scores": (
        lambda case, oracle: (
            case.operator == "Attention" and case.attributes.get("qk_matmul_output_mode", 0) > 0
        )
    ),
    "onnxruntime's logarithms and exponentials of integers are those of integers": (
        lambda case, oracle: case.operator.startswith("ReduceLogSum") and _dtype(case) not in FLOATS
    ),
    "onnxruntime reads the indices of MaxUnpool in the output_shape that is given, the standard's "
    "reference in the shape that strides and pads give": (
        lambda case, oracle: case.operator == "MaxUnpool" and "x2" in case.constants
    ),
    "onnxruntime cuts off the digits of interpolated integers, the standard's reference rounds": (
        lambda case, oracle: (
            case.operator in ("Resize", "Upsample")
            and case.attributes["mode"] != "nearest"
            and _dtype(case) not in FLOATS
        )
    ),
    "onnx.reference reflects and sums in the dtype of integers; graphgrad's are what onnxruntime "
    "gives for equal floats, cut off": (
        lambda case, oracle: (
            case.operator == "GridSample" and _dtype(case) not in FLOATS and oracle == _BY_REFERENCE
        )
    ),
    "of a start before the first element and a negative step, onnxruntime takes the first element, "
    "the standard's reference (as numpy) nothing": (
        lambda case, oracle: (
            case.operator == "Slice"
            and "x4" in case.constants
            and bool((case.constants["x4"] < 0).any())
            and bool((case.constants["x1"] < 0).any())
        )
    ),
    "onnx.reference has one version of the softmax family, that of opset 13": (
        lambda case, oracle: (
            case.operator in ("Softmax", "LogSoftmax", "Hardmax")
            and case.opset < 13
            and oracle == _BY_REFERENCE
        )
    ),
    "onnx.reference sums uint32 in uint64": (
        lambda case, oracle: (
            case.operator.startswith("Reduce")
            and _dtype(case) == "uint32"
            and oracle == _BY_REFERENCE
        )
    ),
    "onnx.reference leaves clip, layout and the parameters of activations out, and its LRN is not "
    "that of the standard's formula": (
        lambda case, oracle: (
            case.operator in ("RNN", "GRU", "LSTM", "LRN") and oracle == _BY_REFERENCE
        )
    ),
}
