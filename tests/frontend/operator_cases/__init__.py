"""Generated cases of ONNX operators: attributes, versions, ranks, dtypes and optional inputs.

`cases` yields those of an operator, the same for the same seed; `forward.judge` compares their
results with onnxruntime's.
"""

from .case import FAMILIES, NOT_DRAWN, Case, case, cases, standard_operators, versions

__all__ = ["FAMILIES", "NOT_DRAWN", "Case", "case", "cases", "standard_operators", "versions"]
