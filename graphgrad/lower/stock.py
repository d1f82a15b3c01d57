"""The passes of TVM that lowering uses, each with its phase and the reasons for its position."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tvm
from tvm.relax import transform

from ..ir.passes import Pass, Phase


def _stock(function: object, phase: Phase, **declared: object) -> Pass:
    return Pass(function, (phase,), over="stock", **declared)  # type: ignore[arg-type]


def _configured(make_pass: Callable[[], Any], **config: Any) -> Callable[[], Any]:
    """What makes a pass of TVM with a configuration, of which the pass context's own goes first."""

    @wraps(make_pass)
    def make() -> Any:
        @tvm.transform.module_pass(opt_level=0, name=make_pass.__name__)
        def run(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
            # Without instruments: they see this pass, and would count TVM's as a second one.
            configured = tvm.transform.PassContext(
                opt_level=context.opt_level,
                required_pass=list(context.required_pass),
                disabled_pass=list(context.disabled_pass),
                config={**config, **context.config},
            )
            with configured:
                return make_pass()(mod)

        return run

    return make


LAMBDA_LIFT = _stock(
    transform.LambdaLift, Phase.GRAPH, because="what follows looks at functions of the module alone"
)

# Fusion. Constants are not folded: each fold compiles and runs a kernel at compile time (30 ms),
# and stores a tensor that fusion lets its reader compute for nothing.

ANNOTATE_PATTERNS = _stock(transform.AnnotateTIROpPattern, Phase.KERNELS)

MAX_FUSED_CALLS = 32
"""The most calls that fusion makes one kernel of. Networks have up to 24 in one (an update by Adam
has 14), and longer kernels gain nothing: a pass over memory more, in 32, is not noticed. But what
follows takes time that grows faster than a kernel, and a chain cut at equal lengths repeats its
kernels."""

FUSE_OPS = _stock(
    _configured(transform.FuseOps, **{"relax.FuseOps.max_depth": MAX_FUSED_CALLS}),
    Phase.KERNELS,
    requires={"AnnotateTIROpPattern": "it groups kernels by the kinds that are noted"},
)

FUSE_KERNELS = _stock(
    transform.FuseTIR,
    Phase.KERNELS,
    to=Phase.FUSED,
    requires={"FuseOps": "it makes one kernel of each group"},
)

# Instructions: the passes of the stock pipeline.

VIEW_RESHAPES = _stock(
    transform.RewriteDataflowReshape,
    Phase.DONATED,
    before={"ToNonDataflow": "it looks into dataflow blocks alone"},
)

LEAVE_DATAFLOW = _stock(
    transform.ToNonDataflow,
    Phase.DONATED,
    before={"CallTIRRewrite": "kernels that write to their outputs have effects"},
)

PASS_OUTPUTS = _stock(transform.CallTIRRewrite, Phase.DONATED, to=Phase.ALLOCATED)

DROP_PURITY = _stock(
    transform.RemovePurityChecking,
    Phase.ALLOCATED,
    because="calls of kernels with their outputs are not pure",
)

LOWER_ALLOCATIONS = _stock(
    transform.LowerAllocTensor,
    Phase.PLANNED,
    because="it gives memory to the tensors that the plan has left out",
)

RELEASE = _stock(
    transform.KillAfterLastUse,
    Phase.PLANNED,
    after={"LowerAllocTensor": "memory is released as well as tensors"},
)

LOWER_BUILTINS = _stock(transform.LowerRuntimeBuiltin, Phase.PLANNED, to=Phase.MACHINE)

COMPUTE_NUMBERS = _stock(
    transform.ComputePrimValue,
    Phase.MACHINE,
    before={"VMShapeLower": "it computes shapes of what is a variable by then"},
)

LOWER_SHAPES = _stock(transform.VMShapeLower, Phase.MACHINE)

NAME_SYMBOLS = _stock(
    transform.AttachGlobalSymbol,
    Phase.MACHINE,
    after={
        "ComputePrimValue": "kernels that it adds need symbols too",
        "VMShapeLower": "kernels that it adds need symbols too",
    },
)
