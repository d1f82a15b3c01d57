"""graphgrad: gradients of ONNX and Relax models, as ordinary Relax.

``docs/architecture.md`` lists the rooms of the package from top to bottom.
"""

from . import fallback, loss, optim, schedule, transform
from .autodiff.jvp import jvp
from .autodiff.vjp import vjp
from .bridges.as_jax import as_jax, jax_op
from .bridges.as_torch import as_torch, torch_op
from .check.gradients import check_grads
from .errors import (
    AliasError,
    ArgumentError,
    CheckpointError,
    DeviceError,
    ExportError,
    GradientMismatch,
    GraphGradError,
    InputError,
    LoweringError,
    MissingGradientError,
    ModelError,
    NotDifferentiableError,
    OutOfMemoryError,
    OutputError,
    RuleError,
    TargetError,
)
from .fallback.gradient import te_gradient
from .fallback.intrinsics import register_intrinsic_gradient
from .fallback.jvp import te_jvp
from .frontend.model import Model
from .frontend.onnx_import import from_onnx
from .frontend.torch_import import from_torch
from .lower.pipeline import compile, pipeline
from .lower.target import target
from .lower.thread_count import set_threads
from .memory.budget import MemoryBudget
from .memory.effects import declare_effects
from .memory.sharing import shares_memory
from .ops.call_te import call_te
from .ops.copy import copy
from .ops.scan import scan
from .precision import Precision
from .profile.profile import profile
from .registry.rule import nondifferentiable, register_gradient
from .report.coverage import coverage
from .train.export import export_step
from .train.gradient_onnx import gradient_to_onnx
from .train.hvp import hvp
from .train.jacobian import jacobian
from .train.model_onnx import to_onnx
from .train.per_example import per_example_grads
from .train.step import train_step
from .train.step_onnx import step_to_onnx
from .train.value_and_grad import value_and_grad

__version__ = "0.1.0"

__all__ = [
    "AliasError",
    "ArgumentError",
    "CheckpointError",
    "DeviceError",
    "ExportError",
    "GradientMismatch",
    "GraphGradError",
    "InputError",
    "LoweringError",
    "MemoryBudget",
    "MissingGradientError",
    "Model",
    "ModelError",
    "NotDifferentiableError",
    "OutOfMemoryError",
    "OutputError",
    "Precision",
    "RuleError",
    "TargetError",
    "as_jax",
    "as_torch",
    "call_te",
    "check_grads",
    "compile",
    "copy",
    "coverage",
    "declare_effects",
    "export_step",
    "fallback",
    "from_onnx",
    "from_torch",
    "gradient_to_onnx",
    "hvp",
    "jacobian",
    "jax_op",
    "jvp",
    "loss",
    "nondifferentiable",
    "optim",
    "per_example_grads",
    "pipeline",
    "profile",
    "register_gradient",
    "register_intrinsic_gradient",
    "scan",
    "schedule",
    "set_threads",
    "shares_memory",
    "step_to_onnx",
    "target",
    "te_gradient",
    "te_jvp",
    "to_onnx",
    "torch_op",
    "train_step",
    "transform",
    "value_and_grad",
    "vjp",
]
