"""The passes of TVM that lowering uses, each with its phase and the reasons for its position."""

from __future__ import annotations

from tvm.relax import transform

from ..ir.passes import Pass, Phase


def _stock(function: object, phase: Phase, **declared: object) -> Pass:
    return Pass(function, (phase,), over="stock", **declared)  # type: ignore[arg-type]


LAMBDA_LIFT = _stock(
    transform.LambdaLift, Phase.GRAPH, because="what follows looks at functions of the module alone"
)

# Fusion. Constants are not folded: each fold compiles and runs a kernel at compile time (30 ms),
# and stores a tensor that fusion lets its reader compute for nothing.

ANNOTATE_PATTERNS = _stock(transform.AnnotateTIROpPattern, Phase.KERNELS)

FUSE_OPS = _stock(
    transform.FuseOps,
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
