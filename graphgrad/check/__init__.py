"""Checking gradients against finite differences: of rules, models, expressions, given pairs.

Start with `gradients`, which decides what is checked; `point` checks one function at one point, and
`promote` makes the same computation in float64.
"""

from .compare import InputCheck, Tolerances, compare_gradients
from .functions import Settings, check_function
from .gradients import check_grads
from .machine import flat
from .result import GradientCheck, PartCheck
from .samples import RuleChecker, sample_inputs, sample_module
from .subject import Subject, of_function, of_model

__all__ = [
    "GradientCheck",
    "InputCheck",
    "PartCheck",
    "RuleChecker",
    "Settings",
    "Subject",
    "Tolerances",
    "check_function",
    "check_grads",
    "compare_gradients",
    "flat",
    "of_function",
    "of_model",
    "sample_inputs",
    "sample_module",
]
