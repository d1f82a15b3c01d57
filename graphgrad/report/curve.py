"""The loss curve: as a line of text, and as a picture."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from ..files import write_file

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60, top: float | None = None) -> str:
    """Draw values as one line of block characters, low to high.

    Parameters
    ----------
    values : sequence of float
        Longer sequences are averaged into `width` bins; a bin with no finite value is a space.
    width : int
        Longest line.
    top : float, optional
        The value of the highest block; the lowest then is 0. By default the highest and the lowest
        of the bins.

    Returns
    -------
    str
        At most `width` characters; empty for no values.
    """
    count = min(width, len(values))
    means = [
        _finite_mean(values[bin * len(values) // count : (bin + 1) * len(values) // count])
        for bin in range(count)
    ]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return " " * count
    low, high = (min(finite), max(finite)) if top is None else (0.0, top)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else BLOCKS[round((mean - low) * scale)] for mean in means)


def write_picture(
    path: str | Path, losses: Sequence[float], accuracies: Sequence[tuple[int, float]]
) -> bool:
    """Write the loss of each step and the held-out accuracies as a PNG.

    Parameters
    ----------
    path : str or Path
        Overwritten.
    losses : sequence of float
        One per step; non-finite ones leave gaps.
    accuracies : sequence of (int, float)
        Step and held-out accuracy; may be empty.

    Returns
    -------
    bool
        Whether it was written: without matplotlib (extra ``plot``) nothing is.

    Raises
    ------
    OutputError
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8, label="training loss")
    axes.set(xlabel="step", ylabel="loss", yscale="log" if _all_positive(losses) else "linear")
    if accuracies:
        accuracy_axes = axes.twinx()
        accuracy_axes.plot(*zip(*accuracies, strict=True), "C1.-", label="held-out accuracy")
        accuracy_axes.set(
            ylabel="held-out accuracy",
            ylim=(min(accuracy for _, accuracy in accuracies) - 0.02, 1.0),
        )
    figure.legend(loc="outside upper center", ncols=2)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_file(path, picture.getvalue())
    return True


def _finite_mean(values: Sequence[float]) -> float | None:
    """The mean of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _all_positive(values: Sequence[float]) -> bool:
    """Whether all finite values are above 0, so that a logarithmic scale can show them."""
    return all(value > 0 for value in values if math.isfinite(value))
