"""A report as an HTML page: the graph of a model with its gradients, and a profile of its step."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..files import write_file
from ..report.coverage import Coverage
from ..report.graph import FOLDED, Graph, Subject, model_graph, untrained
from ..report.layers import BOX, ROW, draw
from ..report.page import page
from .trace import trace_json

if TYPE_CHECKING:
    from .profile import KernelTime, Profile

TRACE_SUFFIX = ".trace.json"
"""The trace of ``step.html`` is ``step.trace.json``."""

_SUFFIXES = (".html", ".htm")
_TENSORS_SHOWN = 20


def check_report_path(path: str | os.PathLike[str]) -> Path:
    """The path of a report, after checking that a file can stand there.

    Raises
    ------
    ArgumentError
        Its ending is not that of HTML, its folder is missing, or it is a folder itself.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(f"the report {path} must end in {' or '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"the report {path} has no folder to be in: {path.parent} is none")
    for file in (path, path.with_suffix(TRACE_SUFFIX)):
        if file.is_dir():
            raise ArgumentError(f"{file} is a folder, where a file is to be written")
    return path


def write_report(path: str | os.PathLike[str], text: str, profile: Profile | None) -> list[Path]:
    """Write the text of a report, and the trace of its profile beside it.

    Returns
    -------
    list of Path
        What was written: a report without a profile has no trace.

    Raises
    ------
    ArgumentError
        As `check_report_path`.
    OutputError
        A file cannot be written.
    """
    written = [check_report_path(path)]
    if profile is not None:
        written.append(written[0].with_suffix(TRACE_SUFFIX))
        write_file(written[1], trace_json(profile).encode())
    write_file(written[0], text.encode())
    return written


def report_page(
    title: str, subject: Subject, covered: Coverage, profile: Profile | None, why_none: str = ""
) -> str:
    """The text of a report.

    Parameters
    ----------
    title : str
    subject : Subject
    covered : Coverage
        Of the subject.
    profile : Profile or None
    why_none : str
        Why there is no profile.
    """
    graph = model_graph(subject, covered)
    number_of_name = {node.name: number for number, node in enumerate(graph.nodes)}
    facts = {
        "title": title,
        "tiles": _tiles(subject, graph, profile),
        "notes": subject.model.notes,
        "graph": _graph_facts(graph),
        "untrained": [asdict(entry) for entry in untrained(subject)],
        "without_gradient": [
            asdict(row)
            for row in [*covered.rows, *covered.off_path]
            if row.provenance in ("missing", "nondifferentiable", "not needed")
        ],
        "why_no_profile": why_none,
        "profile": None if profile is None else _profile_facts(profile, number_of_name),
    }
    return page(f"{title} – graphgrad", facts)


def _tiles(subject: Subject, graph: Graph, profile: Profile | None) -> list[tuple[str, str]]:
    """The figures at the top: what each says, and the figure."""
    weights = [subject.model.params[name].size for name in subject.wrt]
    all_weights = [array.size for array in subject.model.params.values()]
    nodes = [node for node in graph.nodes if node.kind == "node"]
    missing = sum(node.origin == "missing" for node in nodes)
    tiles = [
        ("nodes", f"{len(nodes):,}"),
        ("numbers that train", f"{sum(weights):,} of {sum(all_weights):,}"),
        ("gradients", f"missing at {missing} node(s)" if missing else "complete"),
    ]
    if profile is not None:
        tiles += [
            ("a step", f"{1e3 * median(profile.step_seconds):.2f} ms"),
            ("of which kernels", f"{1e3 * profile.kernel_seconds:.2f} ms"),
            ("compiled in", f"{profile.compile_seconds:.1f} s"),
        ]
        if profile.memory is not None:
            tiles.append(("most in use", f"{profile.memory.peak_bytes / 1e6:.1f} MB"))
        tiles.append(("on", profile.target))
    return tiles


def _graph_facts(graph: Graph) -> dict[str, Any]:
    """The graph, drawn."""
    drawing = draw(len(graph.nodes), graph.edges)
    return {
        "box": BOX,
        "row": ROW,
        "width": drawing.width,
        "height": drawing.height,
        "nodes": [
            {
                "name": node.name,
                "op": node.op,
                "kind": node.kind,
                "origin": node.origin,
                "calls": [(row.op, row.provenance, row.reason) for row in node.calls],
                "params": node.params,
                "types": node.types,
                "place": place,
            }
            for node, place in zip(graph.nodes, drawing.places, strict=True)
        ],
        "edges": [[*edge, lanes] for edge, lanes in zip(graph.edges, drawing.lanes, strict=True)],
        "folded": FOLDED,
    }


def _profile_facts(profile: Profile, number_of_name: Mapping[str, int]) -> dict[str, Any]:
    """The profile, with nodes by their number in the graph."""
    memory = profile.memory
    return {
        "kernels": [
            {
                "kernel": kernel.kernel,
                "seconds": kernel.seconds,
                "phase": kernel.phase,
                "op_class": kernel.op_class,
                "gradients": kernel.gradients,
                "nodes": _numbers(kernel, number_of_name),
                "call": kernel.call,
            }
            for kernel in profile.kernels
        ],
        "node_seconds": _node_seconds(profile, number_of_name),
        "node_bytes": _node_bytes(profile, number_of_name),
        "classes": [asdict(class_time) for class_time in profile.classes],
        "memory": memory
        and {
            "tensors": memory.tensors,
            "scratch": memory.scratch,
            "arguments": memory.arguments,
            "peak": memory.peak,
            "at_peak": [asdict(tensor) for tensor in memory.at_peak[:_TENSORS_SHOWN]],
            "more_at_peak": max(0, len(memory.at_peak) - _TENSORS_SHOWN),
        },
    }


def _numbers(kernel: KernelTime, number_of_name: Mapping[str, int]) -> Sequence[int]:
    """The nodes of a kernel by number."""
    return [number_of_name[name] for name in kernel.nodes if name in number_of_name]


def _node_seconds(profile: Profile, number_of_name: Mapping[str, int]) -> dict[int, float]:
    """The time of all kernels that a node is in, also of those that it shares, by its number."""
    seconds: dict[int, float] = defaultdict(float)
    for kernel in profile.kernels:
        for number in _numbers(kernel, number_of_name):
            seconds[number] += kernel.seconds
    return dict(seconds)


def _node_bytes(profile: Profile, number_of_name: Mapping[str, int]) -> dict[int, int]:
    """The bytes in use at the peak that kernels of a node have computed, by its number."""
    sizes: dict[int, int] = defaultdict(int)
    if profile.memory is None:
        return {}
    kernel_of_call = {kernel.call: kernel for kernel in profile.kernels if kernel.call is not None}
    for tensor in profile.memory.at_peak:
        # What is updated in place is an argument: of the parameters, not of a node.
        if tensor.kind != "argument" and tensor.call is not None:
            for number in _numbers(kernel_of_call[tensor.call], number_of_name):
                sizes[number] += tensor.bytes
    return dict(sizes)
