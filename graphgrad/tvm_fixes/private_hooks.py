"""What graphgrad uses of TVM beyond its public interface, with the reason of each use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Hook:
    """Something private to TVM.

    Attributes
    ----------
    name : str
        In Markdown.
    pattern : str
        A regular expression that finds its uses in lines of source.
    purpose : str
        What it is used for.
    instead : str
        What TVM would have to offer.
    """

    name: str
    pattern: str
    purpose: str
    instead: str


HOOKS = (
    Hook(
        "`te._ffi_api.ComputeOp`, `ExternOp`, `ScanOp`",
        r"from tvm\.te import _ffi_api|_ffi_api\.(Compute|Extern|Scan)Op",
        "stages over axes that exist, with bodies, tags and attributes that are given",
        "`te.compute` and `te.extern` that take axes and bodies; they make axes of their own",
    ),
    Hook(
        "`relax.expr._update_type`",
        r"relax\.expr\._update_type",
        "the type of an expression that is built from one whose type is known: no builder is "
        "there to infer it, or would find less",
        "a type among the arguments of `relax.Call`, `SeqExpr` and `Function`",
    ),
    Hook(
        "`BlockBuilder._begin_binding_block`, `_begin_dataflow_block`, `_end_block`",
        r"_begin_(binding|dataflow)_block|_end_block",
        "the blocks of branches and of bodies of loops, which are no function's",
        "public methods of these names",
    ),
    Hook(
        "`tvm_ffi.structural._ffi_api`, `_callback_type_to_type_index`",
        r"structural\._",
        "walks of small trees, sixty thousand a step: the public functions work out at each call "
        "which numbers the classes have, which takes longer than the walk",
        "a cache inside `structural_walk` and `structural_map`",
    ),
    Hook(
        "`tvm_ffi.Object.__chandle__`",
        r"__chandle__",
        "the identity of a node, as a key: Python's `id` is that of a wrapper",
        "a public identity of nodes",
    ),
    Hook(
        "`__tvm_ffi_type_info__`",
        r"__tvm_ffi_type_info__",
        "all attributes of a call, of any op, to make the same with other values",
        "`attrs.keys()` for every kind of attributes, as `DictAttrs` has it",
    ),
    Hook(
        "`ffi.ArraySize`, `ffi.ArrayGetItem`; `Array.__iter__`, patched at import",
        r"ffi\.Array(Size|GetItem)|Array\.__iter__",
        "the items of arrays: passes would spend a tenth of their time in TVM's iteration",
        "a fast `Array.__iter__`, see [array_iteration_slow](#array_iteration_slow)",
    ),
    Hook(
        "`__instancecheck__` of the metaclass of `tvm_ffi.Object`, patched at import",
        r"metaclass\.__instancecheck__",
        "`isinstance` of nodes: that of `ABCMeta` takes twice as long, and a lowering asks a "
        "million times",
        "a metaclass that is derived from `type`: no class of TVM has virtual subclasses",
    ),
    Hook(
        "`tvm.ir._tensor_expr_overload`, patched at import",
        r"_tensor_expr_overload",
        "`expression + Tensor` reaches `Tensor.__radd__`",
        "NotImplemented, see [operators_raise_for_unknown_operands]"
        "(#operators_raise_for_unknown_operands)",
    ),
    Hook(
        "`ir.RegisterOp`",
        r"ir\.RegisterOp",
        "ops of graphgrad's own, which infer types, are lowered and differentiated like any other; "
        "and one of kernels, whose meaning LLVM is told",
        "`tvm.ir.register_op`",
    ),
    Hook(
        "`onnx_frontend._get_convert_map`, `onnx_input`, `parse_shape_name`",
        r"_get_convert_map|stock\.onnx_input|stock\.parse_shape_name",
        "operators of ONNX one at a time, between those that graphgrad translates itself",
        "a table of converters that callers may extend",
    ),
    Hook(
        "`tvm.relax.te_grad._register.*`",
        r"te_grad\._register",
        "gradients that `relax.training.utils.register_te_gradient` has registered",
        "a function that returns what was registered",
    ),
    Hook(
        "`vm_build._vmcodegen`, `vm_build._ffi_api.VMLink`",
        r"vm_build\._",
        "kernels compiled by several threads: `relax.build` makes one LLVM module of all",
        "`relax.build` that takes compiled kernels, or compiles in parallel",
    ),
    Hook(
        "`Module._collect_dso_modules`, `runtime._ffi_api.ModulePackImportsToLLVM`",
        r"_collect_dso_modules|from tvm\.runtime import .*_ffi_api|ModulePackImportsToLLVM",
        "libraries whose objects are emitted by several threads: `export_library` emits one after "
        "the other",
        "`export_library` in parallel",
    ),
    Hook(
        "`compilation_pipeline.PIPELINE_MAP`",
        r"PIPELINE_MAP",
        "TVM's lowering of kernels, with a check behind it",
        "the lowering of kernels as a pass that can be followed by others",
    ),
    Hook(
        "numbers of `TVMStructFieldKind`",
        r"tvm_struct_get",
        "one check of all arguments of a function, and kernels that take addresses",
        "names for the fields that `tirx.tvm_struct_get` reads",
    ),
    Hook(
        "`op_pattern`",
        r"op_pattern",
        "kernels that fusion is to leave alone, or would take the maps of",
        "`OpPatternKind` in Python",
    ),
    Hook(
        "`tvm_callback_cuda_compile`, replaced while a program is compiled or loaded",
        r"tvm_callback_cuda_compile",
        "exact mathematics, see [cuda_compiler_uses_fast_mathematics]"
        "(#cuda_compiler_uses_fast_mathematics), and machine code without a compiler in exports",
        "options of the target",
    ),
    Hook(
        "the texts `CUDA`, `cudaErrorMemoryAllocation`",
        r"\"CUDA\" (not )?in|cudaErrorMemoryAllocation",
        "errors of a device told from others, and those of memory from those",
        "classes of exceptions",
    ),
    Hook(
        "`vm.builtin.memory_manager.clear`",
        r"memory_manager\.clear",
        "memory of a device that TVM's pool keeps, given back before an allocation fails",
        "a method of `tvm.runtime.Device`",
    ),
    Hook(
        "`runtime.config_threadpool`, `runtime.NumThreads`",
        r"runtime\.(config_threadpool|NumThreads)",
        "as many threads as cores, bound to none, see [pool_binds_its_caller]"
        "(#pool_binds_its_caller)",
        "functions of `tvm.runtime`",
    ),
    Hook(
        "`tvm.base._LOADED_LIBS`, mangled `threading::MaxConcurrency`, `SetMaxConcurrency`",
        r"_ZN3tvm|_LOADED_LIBS",
        "whether somebody has chosen the number of threads, and one thread after a fork, see "
        "[fork_leaves_pool_without_threads](#fork_leaves_pool_without_threads)",
        "both functions, registered",
    ),
    Hook(
        "`tvm_ffi.libinfo.load_lib_ctypes`",
        r"load_lib_ctypes",
        "the runtime's parts for CUDA and for packed functions, where no compiler is loaded",
        "`TVM_USE_RUNTIME_LIB=1` that loads them as well",
    ),
    Hook(
        "`target.llvm_*`, `target.target_has_feature`, `target.build.*`, `device_api.*`",
        r"\"target\.|f\"target\.build|\"device_api\.|GetCudaDeviceCount",
        "the host's processor and its features, the targets that TVM was built with, why there is "
        "no GPU",
        "functions of `tvm.target`",
    ),
)

PINS = (
    ("apache-tvm==0.27.0.post1", "the hooks above, and work-arounds that know what they mend."),
    (
        "apache-tvm-ffi==0.1.14.post1",
        "from 0.1.15.post1 on, `tvm.ir.save_json` ends the process by SIGSEGV, for "
        '`tirx.const(1, "int32")` already; meta-schedule, caches and whatever serializes go with '
        "it.",
    ),
)
"""The requirements that are pinned to one version, and why."""


def users(hook: Hook) -> list[str]:
    """The modules of graphgrad that use a hook, by their dotted names."""
    return [module for module, source in _modules() if re.search(hook.pattern, source)]


def _modules() -> list[tuple[str, str]]:
    modules = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        if _PACKAGE / "tvm_fixes" not in path.parents or path.stem == "hooks":
            parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            modules.append((name, path.read_text(encoding="utf-8")))
    return modules
