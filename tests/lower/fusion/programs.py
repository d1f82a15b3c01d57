"""Programs of kernels, as fusion gets them, and what is counted in them."""

import tvm
from tvm import relax

from graphgrad.ir.kernel_calls import is_kernel_call
from graphgrad.ir.rewrite import bindings_of
from graphgrad.lower.fusion import annotate_reductions
from graphgrad.ops.legalize import LEGALIZATIONS
from tests.running import function


def kernels(build, *types):
    """Return the module of one function whose ops have become calls of kernels."""
    return relax.transform.LegalizeOps(LEGALIZATIONS)(function(build, *types))


def noted(mod):
    """Return a module whose kernels bear notes of what kind they are."""
    return annotate_reductions(relax.transform.AnnotateTIROpPattern()(mod))


def fused(mod):
    """Return a module after stock fusion."""
    return tvm.transform.Sequential([relax.transform.FuseOps(), relax.transform.FuseTIR()])(mod)


def called(mod, name="main"):
    """Return the names of the kernels that a function calls, in order."""
    values = [binding.value for binding in bindings_of(mod[name].body)]
    return [str(value.args[0].name_hint) for value in values if is_kernel_call(value)]
