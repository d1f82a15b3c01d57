"""A profile as text, in tables with bars, and as a picture."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table

from ..errors import ArgumentError
from ..files import write_file
from ..memory.budget import megabytes
from ..report.curve import sparkline
from ..report.table import listed, table

if TYPE_CHECKING:
    from .memory import LiveTensor
    from .profile import KernelTime, Profile

FIGURE_FORMATS = (".png", ".svg")

_COLORS = {"forward": "C0", "backward": "C1", "update": "C2"}
_MIXED = "C7"

_BAR_WIDTH = 24
_CLASSES_SHOWN = 30
_KERNELS_SHOWN = 10
_TENSORS_SHOWN = 8
_NAME_WIDTH = 44


def timing_text(profile: Profile) -> str:
    """The time and the memory of a step as a whole, as text."""
    low, high = (1e3 * f(profile.step_seconds) for f in (min, max))
    parts = [
        f"a step takes {1e3 * median(profile.step_seconds):.2f} ms ({low:.2f} to {high:.2f} in "
        f"{len(profile.step_seconds)} steps), compiled in {profile.compile_seconds:.1f} s"
    ]
    if profile.memory is not None:
        parts.append(f"at most {megabytes(profile.memory.peak_bytes)} are in use")
    return "; ".join(parts)


def profile_tables(profile: Profile) -> Group:
    """A profile for people: time by class, the slowest kernels, and the memory timeline."""
    parts = [_summary(profile), "", *_classes(profile), "", _kernels(profile)]
    if profile.memory is not None:
        parts += ["", *_memory(profile)]
    return Group(*parts)


def budget_text(within: Profile, without: Profile) -> str:
    """A step within a budget of memory beside the same step without: time, and memory over it."""
    timelines = [profile.memory for profile in (without, within)]
    ratio = median(within.step_seconds) / median(without.step_seconds)
    lines = [f"{ratio:.2f} of the time without a budget; memory in use over the step:"]
    if None not in timelines:
        top = max(timeline.peak_bytes for timeline in timelines if timeline is not None)
        for name, timeline in zip(("without", "within"), timelines, strict=True):
            assert timeline is not None
            line = sparkline(timeline.totals, top=top)
            lines.append(f"{name:8}{line}  {megabytes(timeline.peak_bytes)}")
    return "\n".join(lines)


def check_figure_path(path: str | Path) -> Path:
    """The path of a picture, after checking that its format can be drawn.

    Raises
    ------
    ArgumentError
        The ending is none that is drawn, or matplotlib is missing.
    """
    path = Path(path)
    if path.suffix.lower() not in FIGURE_FORMATS:
        raise ArgumentError(
            f"the figure {path} must end in {' or '.join(FIGURE_FORMATS)}, which is its format"
        )
    _figure_class()
    return path


def write_profile_figure(
    path: str | Path, profile: Profile, without: Profile | None = None
) -> None:
    """Draw a profile: bars of time by class, and the bytes in use over the step.

    Parameters
    ----------
    path : str or Path
        Ends in ``.png`` or ``.svg``; overwritten.
    profile : Profile
    without : Profile, optional
        Of the same step without a budget of memory, to be compared.

    Raises
    ------
    ArgumentError
        As `check_figure_path`.
    OutputError
        The file cannot be written.
    """
    path = check_figure_path(path)
    classes = profile.classes[:_CLASSES_SHOWN]
    figure = _figure_class()(figsize=(9, 4 + 0.25 * len(classes)), layout="constrained")
    bars, memory = figure.subplots(2, 1, height_ratios=(1 + 0.25 * len(classes), 3))
    bars.barh(
        range(len(classes)),
        [1e3 * class_time.seconds for class_time in classes],
        color=[_COLORS.get(class_time.phase, _MIXED) for class_time in classes],
    )
    bars.set_yticks(
        range(len(classes)),
        [shortened(f"{class_time.op_class}, {class_time.phase}") for class_time in classes],
    )
    bars.invert_yaxis()
    bars.set(xlabel="ms per step", title=_headline(profile))
    _draw_memory(memory, profile)
    if without is not None and without.memory is not None and profile.memory is not None:
        # The same step without a budget, stretched to as many calls.
        totals = [count / 1e6 for count in without.memory.totals]
        scale = len(profile.memory.tensors) / max(len(totals), 1)
        calls = [index * scale for index in range(len(totals))]
        memory.plot(calls, totals, color="k", linestyle=":", label="without a budget")
        memory.legend(loc="upper right")
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.lower().removeprefix("."), dpi=120)
    write_file(path, picture.getvalue())


def _figure_class() -> Any:
    """Matplotlib's class of figures, or `ArgumentError` where it is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        raise ArgumentError(
            "a figure needs matplotlib: pip install 'graphgrad[plot]', or leave the figure out"
        ) from error
    return Figure


def _draw_memory(axes: Any, profile: Profile) -> None:
    """Draw the bytes in use at each kernel; leave the axes empty if they are not known."""
    timeline = profile.memory
    if timeline is None:
        axes.set_axis_off()
        return
    tensors = [count / 1e6 for count in timeline.tensors]
    totals = [a + b / 1e6 for a, b in zip(tensors, timeline.scratch, strict=True)]
    calls = range(len(totals))
    axes.fill_between(calls, totals, step="mid", color="C3", alpha=0.5, label="held by kernels")
    axes.fill_between(calls, tensors, step="mid", color="C0", label="tensors")
    axes.axhline(timeline.arguments / 1e6, color="k", linewidth=0.8, label="arguments")
    axes.plot(timeline.peak, timeline.peak_bytes / 1e6, "kv", label="peak")
    axes.set(xlabel="kernel call", ylabel="MB in use", ylim=(0, None))
    axes.legend(loc="upper right")


def _headline(profile: Profile) -> str:
    """The title of a profile's picture."""
    step = 1e3 * median(profile.step_seconds)
    return f"a step takes {step:.2f} ms, of which kernels {1e3 * profile.kernel_seconds:.2f} ms"


def _summary(profile: Profile) -> str:
    """The lines above all tables: the step as a whole, and its phases."""
    phases = ", ".join(
        f"{phase} {1e3 * seconds:.2f} ms" for phase, seconds in profile.phases.items()
    )
    return "\n".join(
        [
            timing_text(profile),
            f"kernels {1e3 * profile.kernel_seconds:.2f} ms: {phases}; the virtual machine itself "
            f"{1e3 * profile.machine_seconds:.2f} ms",
        ]
    )


def _classes(profile: Profile) -> list[RenderableType]:
    """The table of kernels by class."""
    total = profile.kernel_seconds or 1.0
    classes = profile.classes
    largest = (classes[0].seconds if classes else 0.0) or 1.0
    rows: list[list[RenderableType]] = [
        [
            class_time.phase,
            shortened(class_time.op_class),
            ", ".join(class_time.gradients),
            ", ".join(class_time.dtypes),
            str(class_time.calls),
            f"{1e3 * class_time.seconds:.3f}",
            f"{100 * class_time.seconds / total:.1f} %",
            f"{class_time.bytes / 1e9 / class_time.seconds:.1f}" if class_time.seconds else "",
            Bar(largest, 0, class_time.seconds, width=_BAR_WIDTH),
        ]
        for class_time in classes[:_CLASSES_SHOWN]
    ]
    header = ["phase", "op class", "gradient", "floats", "calls", "ms", "share", "GB/s", ""]
    return [table(header, rows, right=[4, 5, 6, 7]), *_rest(len(classes) - len(rows), "class(es)")]


def _kernels(profile: Profile) -> Table:
    """The table of the slowest kernels."""
    slowest = sorted(profile.kernels, key=lambda kernel: -kernel.seconds)[:_KERNELS_SHOWN]
    rows = [
        [shortened(kernel.kernel), f"{1e3 * kernel.seconds:.3f}", kernel.phase, _nodes(kernel)]
        for kernel in slowest
    ]
    return table(["slowest kernels", "ms", "phase", "nodes"], rows, right=[1])


def _memory(profile: Profile) -> list[RenderableType]:
    """The memory timeline as a line of blocks, and the table of tensors in use at the peak."""
    timeline = profile.memory
    assert timeline is not None
    by_call = {entry.call: entry for entry in profile.kernels if entry.call is not None}
    totals = timeline.totals
    parts: list[RenderableType] = [
        f"memory in use: {megabytes(timeline.peak_bytes)} at the peak, of which arguments "
        f"{megabytes(timeline.arguments)}",
        sparkline(totals),
    ]
    if timeline.peak not in by_call:
        return parts
    peak = by_call[timeline.peak]
    parts.append(
        f"the peak is at kernel {timeline.peak + 1} of {len(totals)}, {peak.kernel} "
        f"({peak.phase}, {_nodes(peak)}), which holds "
        f"{megabytes(timeline.scratch[timeline.peak])} for itself"
    )
    inner_tensors = [
        entry for entry in timeline.at_peak if entry.kind not in ("argument", "constant")
    ]
    rows = [_live(entry, by_call) for entry in inner_tensors[:_TENSORS_SHOWN]]
    parts.append(table(["in use there", "MB", "kind", "computed by"], rows, right=[1]))
    return [*parts, *_rest(len(inner_tensors) - len(rows), "tensor(s)")]


def _live(tensor: LiveTensor, by_call: dict[int, KernelTime]) -> list[str]:
    """The row of a tensor that is in use at the peak."""
    kernel = None if tensor.call is None else by_call.get(tensor.call)
    computed = f"{kernel.op_class}, {_nodes(kernel)}" if kernel is not None else ""
    return [
        shortened(tensor.name),
        f"{tensor.bytes / 1e6:.2f}",
        tensor.kind,
        shortened(computed, 70),
    ]


def _nodes(kernel: KernelTime) -> str:
    """The first of a kernel's nodes; its class if it has none."""
    return listed(kernel.nodes) or kernel.op_class


def _rest(count: int, noun: str) -> list[str]:
    """A line for the rows that a table leaves out; none if there are none."""
    return [f"and {count} more {noun}"] if count > 0 else []


def shortened(text: str, width: int = _NAME_WIDTH) -> str:
    """Text cut to a width, with an ellipsis if something is left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
