"""Resizing in float64 and at its borders."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.running import F64, function, run

image = relax.op.image
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}


def resizing(shape, size, dtype=F64, **attributes):
    call = image.resize3d if len(size) == 3 else image.resize2d
    return function(lambda builder, x: builder.emit(call(x, size, **attributes)), (shape, dtype))


def test_float64_stays_float64():
    x = np.array([[[[1.0, 1.0 + 1e-12]]]])
    mod = resizing(x.shape, (1, 4), method="nearest_neighbor")
    (y,) = run(mod, "main", x)
    np.testing.assert_array_equal(y, x.repeat(2, axis=-1))


def test_one_output_with_aligned_corners_is_the_first_input():
    x = np.arange(6.0).reshape(1, 1, 2, 3)
    mod = resizing(x.shape, (1, 1), coordinate_transformation_mode="align_corners")
    np.testing.assert_array_equal(run(mod, "main", x)[0], [[[[0.0]]]])


def test_a_crop_is_extrapolated_along_every_axis():
    x = np.ones((1, 1, 2, 2, 2))
    roi = (0.0, 0.0, 0.0, 1.0, 1.0, 2.0)  # width, height, depth: start, then end
    mod = resizing(x.shape, (2, 2, 2), roi=roi, extrapolation_value=5.0, **CROP)
    expected = np.ones_like(x)
    expected[:, :, 1] = 5
    np.testing.assert_array_equal(run(mod, "main", x)[0], expected)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("method", ["nearest_neighbor", "linear"])
def test_integers(dtype, method):
    x = np.array([[[[10, 20]]]], dtype)
    (y,) = run(resizing(x.shape, (1, 4), dtype, method=method, rounding_method="round"), "main", x)
    assert y.dtype == x.dtype
    expected = [10, 10, 20, 20] if method == "nearest_neighbor" else [10, 12, 18, 20]
    assert y.ravel().tolist() == expected


def test_half_precision_is_rounded_once():
    x = np.random.default_rng(0).uniform(-1, 1, (1, 1, 5, 7)).astype("float16")
    (y,) = run(resizing(x.shape, (9, 4), "float16", method="cubic"), "main", x)
    (exact,) = run(resizing(x.shape, (9, 4), method="cubic"), "main", x.astype(F64))
    np.testing.assert_array_equal(y, exact.astype("float16"))


def test_what_a_sample_does_not_read_does_not_matter():
    x = np.array([[[[np.inf, 1.0, 2.0]]]])
    mod = resizing(x.shape, (1, 3))
    np.testing.assert_array_equal(run(mod, "main", x)[0], x)


def test_a_symbolic_extent_is_resized_as_a_known_one():
    x = np.arange(8, dtype="float32").reshape(1, 1, 2, 4)
    height = tvm.tirx.Var("h", "int64")
    mod = resizing((1, 1, height, 4), (4, 8), "float32")
    np.testing.assert_allclose(
        run(mod, "main", x)[0], run(resizing(x.shape, (4, 8), "float32"), "main", x)[0], atol=1e-6
    )
