"""Modules and exported programs of PyTorch come in; imported when they do, for it needs PyTorch.

Start with `program`, which prepares an exported program. TVM's importer walks through its graph,
and asks `translation` for each node; the converters are in one file per family, in the vocabulary
of gradient rules, and named as PyTorch names its operators.
"""

from . import arrays, elementwise, norms, products, reductions, windows

__all__ = ["arrays", "elementwise", "norms", "products", "reductions", "windows"]
