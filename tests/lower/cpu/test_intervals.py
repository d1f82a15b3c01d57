import numpy as np
import pytest
from tvm import te, tirx

from tests.lower.kernel_programs import run, tensor

ROWS = 2048


def concatenation(*widths):
    """Tensors side by side, as `topi.concatenate` would write them by choices."""
    parts = [tensor(ROWS, width, name=f"x{i}") for i, width in enumerate(widths)]
    ends = np.cumsum(widths)

    def element(i, j):
        value = parts[-1][i, j - int(ends[-2])]
        for part, end in reversed(list(zip(parts[:-1], ends, strict=False))):
            value = tirx.if_then_else(j < int(end), part[i, j - int(end) + part.shape[1]], value)
        return te.exp(value)

    return parts, te.compute((ROWS, int(ends[-1])), element, name="joined")


def added_slices(width, *begins):
    """The gradient of slices: zeros with tensors added at some places."""
    parts = [tensor(ROWS, width, name=f"x{i}") for i, _ in enumerate(begins)]

    def element(i, j):
        total = tirx.const(0.0, "float32")
        for part, begin in zip(parts, begins, strict=True):
            inside = tirx.all(j >= begin, begin + width > j)
            total = total + tirx.if_then_else(inside, te.tanh(part[i, j - begin]), 0.0)
        return total

    return parts, te.compute((ROWS, max(begins) + width + 16), element, name="added")


@pytest.mark.parametrize("widths", [(64, 64), (16, 32, 48), (17, 40)])
def test_sides_of_a_concatenation_are_maps_of_their_own(widths):
    inputs, output = concatenation(*widths)
    runs = run(inputs, [output])
    runs.agree()
    assert "if_then_else" not in runs.text and "joined_from_" in runs.text


@pytest.mark.parametrize("begins", [(0, 64), (16, 48), (0, 16, 32)])
def test_slices_that_are_added_up_are_vectors(begins):
    inputs, output = added_slices(64, *begins)
    runs = run(inputs, [output])
    runs.agree()
    assert "if_then_else" not in runs.text and "T.vectorized" in runs.text


def test_a_narrow_border_stays_a_choice():
    x = tensor(ROWS, 64)
    padded = te.compute(
        (ROWS, 66),
        lambda i, j: tirx.if_then_else(tirx.all(j >= 1, j < 65), x[i, j - 1], 0.0),
        name="padded",
    )
    runs = run([x], [padded])
    runs.agree()
    assert "from_" not in runs.text


def test_comparisons_of_other_indices_stay():
    """Of a sum of two indices there is no interval; and a condition on rows is the same in all."""
    x, y = tensor(ROWS, 64), tensor(ROWS, 64, name="y")
    chosen = te.compute(
        x.shape,
        lambda i, j: tirx.if_then_else(
            i + j < 32, x[i, j], tirx.if_then_else(i > 20, y[i, j], x[i, j] * y[i, j])
        ),
    )
    runs = run([x, y], [chosen])
    runs.agree()
    assert "from_" not in runs.text
