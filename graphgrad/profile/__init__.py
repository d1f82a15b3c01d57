"""Profiles of a training step: its time by kernel and ONNX node, its memory over the step.

Start with `profile`. `origins` and `terms` find out which nodes a kernel computes, `memory` counts
bytes in use, `text` prints and draws, `html` makes the page with the graph, `trace` the trace.
"""
