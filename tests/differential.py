"""Every program three times: in place, never in place, and in guarded memory full of garbage.

    python -m pytest -n 2 -p tests.differential

runs the whole test-suite so: whatever graphgrad compiles for a processor is linked again with each
tensor in memory of its own, full of garbage and beside a page that nobody may touch; and, where
something is in place, compiled again without donation. All are called on copies of the same
arguments and must return the same bits, by a processor that rounds each product and each sum.
Fusion and schedules are those of the first; only which buffers are bound to what differs. Programs
that call functions of Python are run once, as they might do something else the next time. Steps
return all results and take memory at each call, as the others do. Tests marked `compilation` are
run as ever: they count modules, and compare ways to compile.
"""

import contextlib
from collections import Counter
from unittest import mock

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import vm_build

import graphgrad as gg
from graphgrad.lower import pipeline
from graphgrad.memory.donation import DONATED_DONE
from graphgrad.runtime.results import Returned
from graphgrad.train import on_device
from tests.guarded_memory import guarded, guarded_copy

_ALLOCATIONS = ("relax.vm.alloc_tensor", "relax.memory.alloc_tensor")
_OURS = ("vm.", "runtime.", "tests.guarded")
_totals = Counter()
_lowering, _compile = pipeline._lowering, tvm.compile
_compile_kernels = pipeline.compile_kernels
_init, _getitem = relax.VirtualMachine.__init__, relax.VirtualMachine.__getitem__


tvm_ffi.register_global_func("tests.guarded", guarded, override=True)


class Differential:
    """What was lowered, compiled and compared while this is active."""

    def __init__(self):
        self.lowered = {}
        self.variants = {}
        self.compared = 0
        self.in_place = 0

    def lowering(self, target, **options):
        """Return a lowering that remembers what it lowered."""
        lower = _lowering(target, **options)

        @tvm.transform.module_pass(opt_level=0, name="tests.remember")
        def remember(mod, _):
            lowered = lower(mod)
            if str(target.kind.name) == "llvm" and not _calls_python(lowered):
                self.lowered[_key(lowered)] = (lowered, mod, options)
            return lowered

        return remember

    def compile(self, mod, target=None, **options):
        """Do what `tvm.compile` does, and compile the others that must compute the same."""
        return self._compiled(_compile, mod, target, options)

    def compile_kernels(self, mod, target, *_):
        """Do what `compile_kernels` does, and compile the others that must compute the same.

        What may have been built before is for the target as it was.
        """
        return self._compiled(_compile_kernels, mod, target, {})

    def _compiled(self, compile_one, mod, target, options):
        found = self.lowered.pop(_key(mod), None) if isinstance(mod, tvm.IRModule) else None
        if found is None:
            return compile_one(mod, target, **options)
        others, rounding = {}, _rounding_each(target)
        if any(map(_is_in_place, mod.functions.values())):
            self.in_place += 1
            never = self._never_in_place(*found[1:], target)
            others["never in place"] = compile_one(never, rounding, **options)
        executable = compile_one(mod, rounding, **options)
        others["dirtied"] = _linked(_dirtied(mod), executable, rounding)
        self.variants[id(executable)] = (executable, others)
        return executable

    def _never_in_place(self, mod, options, target):
        with tvm.transform.PassContext(disabled_pass=["graphgrad.donate"]), target:
            return _lowering(target, **options)(mod)

    def machine(self, vm, executable, device, *rest, **options):
        """Make a virtual machine, and those of the others."""
        _init(vm, executable, device, *rest, **options)
        vm.others = {}
        for how, variant in self.variants.get(id(executable), (None, {}))[1].items():
            vm.others[how] = relax.VirtualMachine.__new__(relax.VirtualMachine)
            _init(vm.others[how], variant, device, *rest, **options)

    def function(self, vm, name):
        """Return a function that calls all variants and compares."""
        first = _getitem(vm, name)
        others = {how: _getitem(vm, name) for how, vm in getattr(vm, "others", {}).items()}
        return first if not others else lambda *arguments: self.call(name, first, others, arguments)

    def call(self, name, first, others, arguments):
        copying = {"dirtied": guarded_copy, "never in place": gg.copy}
        copies = [_copied(list(arguments), {}, copying[how]) for how in others]
        result = first(*arguments)
        expected = list(_bits(result))
        for (how, other), copied in zip(others.items(), copies, strict=True):
            found = list(_bits(other(*copied)))
            assert found == expected, f"{name} {how} returns other bits than in place"
        self.compared += 1
        return result


@contextlib.contextmanager
def differential():
    """Compile and run everything three times inside the ``with`` block."""
    state = Differential()
    with (
        mock.patch.object(pipeline, "_lowering", state.lowering),
        mock.patch.object(tvm, "compile", state.compile),
        mock.patch.object(pipeline, "compile_kernels", state.compile_kernels),
        mock.patch.object(on_device, "drop_arguments", _with_all_results),
        mock.patch.object(on_device, "take_workspace", lambda mod, _: (mod, None)),
        mock.patch.object(relax.VirtualMachine, "__init__", _method(state.machine)),
        mock.patch.object(relax.VirtualMachine, "__getitem__", _method(state.function)),
    ):
        yield state
    _totals.update({"calls compared": state.compared, "programs in place": state.in_place})


def _with_all_results(mod, name):
    return mod, Returned(list(range(len(mod[name].ret_ty.fields))), [], [])


def _method(function):
    # a function, unlike a bound method, receives the machine
    return lambda *arguments, **options: function(*arguments, **options)  # noqa: PLW0108


def pytest_configure(config):
    """Wrap the whole run, where this is loaded as a plug-in."""
    config.differential = contextlib.ExitStack()
    config.differential.enter_context(differential())
    config.add_cleanup(config.differential.close)


def pytest_sessionfinish(session):
    """Hand what was compared to the process that reports it."""
    session.config.differential.close()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["differential"] = dict(_totals)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add up what a worker has compared."""
    _totals.update(getattr(node, "workeroutput", {}).get("differential", {}))


def pytest_terminal_summary(terminalreporter):
    """Say how much was compared, so that a run which compares nothing is seen."""
    counts = ", ".join(f"{count} {what}" for what, count in _totals.items())
    terminalreporter.write_line(f"differential: {counts or 'nothing compared'}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Leave tests of compilation itself alone, which count its modules and compare its ways."""
    if item.get_closest_marker("compilation") is None:
        return (yield)
    item.config.differential.close()
    try:
        return (yield)
    finally:
        item.config.differential.enter_context(differential())


def _rounding_each(target):
    """Return a processor without fused multiply-add.

    Where LLVM fuses depends on what else is in a loop, so that it rounds in another place where a
    buffer is read and written than where one is read and another written.
    """
    config = dict(target.export())
    features = [*config.get("mattr", []), "-fma", "-fma4", "-avx512f"]
    return tvm.target.Target({**config, "mattr": features})


def _is_in_place(func):
    return bool((getattr(func, "attrs", None) or {}).get(DONATED_DONE))


def _key(mod):
    return hash(mod)  # by address; what was lowered is kept alive until it is compiled


def _calls_python(mod):
    """Return whether a module calls packed functions other than those of the virtual machine."""
    names = []

    def visit(function):
        names.append(str(function.global_symbol))

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            tvm_ffi.structural_walk(func, (relax.ExternFunc, visit))
    return any(not name.startswith(_OURS) for name in names)


def _linked(mod, executable, target):
    """Return a lowered module as an executable that calls the kernels of another one."""
    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, mod)
    kernels = executable.mod.imports
    library = kernels[0] if kernels else None
    return vm_build.VMExecutable(vm_build._ffi_api.VMLink(builder, target, library, [], {}))


def _dirtied(mod):
    """Return a lowered module whose tensors lie in memory of their own, full of garbage."""
    changed = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, relax.Function):
            changed.update_func(name, tvm_ffi.structural_map(func, (relax.VarBinding, _in_dirt)))
    return changed


def _in_dirt(binding):
    call = binding.value
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in _ALLOCATIONS:
        return binding
    _, _, shape, dtype, *_ = call.args
    own = relax.Call(relax.ExternFunc("tests.guarded"), [shape, dtype], None, [binding.var.ty])
    return relax.VarBinding(binding.var, own)


def _copied(value, memo, copy):
    """Return arguments in memory of their own; those that were one tensor still are."""
    if isinstance(value, tvm.runtime.ShapeTuple):  # which is a tuple, too
        return value
    if isinstance(value, list | tuple | tvm_ffi.Array):
        items = [_copied(item, memo, copy) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, tvm.runtime.Tensor):
        key = value.data_ptr(), tuple(value.shape), str(value.dtype)
        return memo.setdefault(key, copy(value))
    return gg.copy(value) if hasattr(value, "__dlpack__") else value


def _bits(value):
    """Yield the tensors of a result as bytes."""
    if isinstance(value, tvm.runtime.Tensor):
        array = value.numpy()
        yield array.shape, str(array.dtype), array.tobytes()
    elif isinstance(value, list | tuple | tvm_ffi.Array):
        for item in value:
            yield from _bits(item)
    else:
        yield repr(value) if isinstance(value, int | float | bool) else type(value).__name__
