"""Losses that ONNX has."""

from __future__ import annotations

from typing import Any

from .graph import Site, writes


@writes("relax.nn.nll_loss")
def _negative_log_likelihood(site: Site) -> Any:
    attributes = site.attributes
    x, targets, *weights = site.names
    rank = len(site.shape_of(0))
    if rank == 1:  # one example, without an axis for more
        x = site.graph.node("Unsqueeze", x, site.graph.ints([0]))
        targets = site.graph.node("Reshape", targets, site.graph.ints([1]))
    loss = site.graph.node(
        "NegativeLogLikelihoodLoss",
        x,
        targets,
        *weights,
        reduction=str(attributes.reduction),
        ignore_index=int(attributes.ignore_index),
    )
    return site.graph.reshape(loss, site.shape)
