"""Ops and functions that rules, importers and lowering have in common, and Relax ops of our own.

A file holds a family: its ops (`define`), their lowerings and those of TVM's ops in the place of
TVM's (`legalize`), and the layout rules of both. An op is worth defining where high-level identity
must survive lowering. Start with `define` and any family, such as `pool`; `functional` is the
vocabulary of rules.
"""

# Importing them registers what they hold.
from . import (  # noqa: F401
    activation,
    attention,
    conv,
    copy,
    cumulative,
    einsum,
    elementwise,
    fused_attention,
    grid_sample,
    index,
    linalg,
    losses,
    many,
    moments,
    movement,
    norm,
    padding,
    pool,
    random,
    reduce,
    resample,
    resize,
    shape,
    sorting,
)
