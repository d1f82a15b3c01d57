import numpy as np
import pytest
from kernel_cases import Case, Convolution, Product, from_json

STRIDED = Convolution(2, 8, 9, 16, 3, 2, 1)
DEPTHWISE = Convolution(2, 8, 9, 8, 3, 1, 1, groups=8)


def test_shapes_and_operations_of_a_convolution():
    assert STRIDED.shapes == {
        "data": (2, 8, 9, 9),
        "weight": (16, 8, 3, 3),
        "result": (2, 16, 5, 5),
    }
    assert STRIDED.operations == 2 * (2 * 16 * 5 * 5) * (8 * 3 * 3)
    assert DEPTHWISE.shapes["weight"] == (8, 1, 3, 3)
    assert DEPTHWISE.operations == 2 * (2 * 8 * 9 * 9) * 9
    assert (STRIDED.name, DEPTHWISE.name) == ("2,8,9->16 3x3 s2", "2,8,9->8 3x3 g8")


@pytest.mark.parametrize(
    "work, expected",
    [
        (Convolution(8, 64, 56, 64, 3, 1, 1), True),
        (Convolution(8, 3, 32, 64, 3, 1, 1), False),
        (Convolution(8, 64, 56, 64, 1, 1, 0), False),
        (STRIDED, False),
        (DEPTHWISE, False),
        (Product(4, 5, 6), False),
    ],
)
def test_what_winograd_may_serve(work, expected):
    assert work.may_be_winograd is expected


def test_shapes_of_products():
    assert Product(4, 5, 6, "NT").shapes == {"data": (4, 5), "weight": (6, 5), "result": (4, 6)}
    assert Product(4, 5, 6, "TN", batch=3).shapes["data"] == (3, 5, 4)
    assert Product(4, 5, 6, batch=3).operations == 2 * 3 * 4 * 5 * 6


@pytest.mark.parametrize("part", Convolution.PARTS)
@pytest.mark.parametrize("work", [STRIDED, DEPTHWISE, Product(4, 5, 6, "NT", batch=3)])
def test_a_case_survives_its_journey(work, part):
    case = Case(work, part)
    assert from_json(case.to_json()) == case


def test_inputs_are_what_a_part_reads_and_equal_everywhere():
    case = Case(STRIDED, "weight")
    data, cotangent = case.inputs()
    assert (data.shape, cotangent.shape) == (STRIDED.shapes["data"], STRIDED.shapes["result"])
    assert data.dtype == np.float32 and -1 <= data.min() < 0 < data.max() <= 1
    np.testing.assert_array_equal(case.inputs()[1], cotangent)
    assert case.bytes == 4 * (2 * 8 * 81 + 16 * 8 * 9 + 2 * 16 * 25)
