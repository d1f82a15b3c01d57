"""Training steps of whole models, lowered for GPUs on a machine that need not have one."""

import re
from functools import cache

import pytest
import tvm

import graphgrad as gg
from graphgrad.errors import LoweringError
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.compiler import executable_sources
from graphgrad.lower.cuda.rules import Rule, scheduling_rules
from graphgrad.lower.cuda.schedule import SCHEDULED, schedule_threads
from graphgrad.memory.donation import DONATED, DONATED_DONE
from graphgrad.models import lenet, mlp
from graphgrad.models.resnet import basic_block, resnet
from graphgrad.train.forward import ResolvedLoss, inline_model
from graphgrad.train.recipe import recipe
from graphgrad.train.update import build_step
from tests import torch_nets
from tests.lower.cuda.sources import needs_nvcc
from tests.lower.watching import around
from tests.peers import peer
from tests.torch_export import export


def block():
    torch = peer("torch")
    net = torch_nets.attention_block(12, 3)
    return export(net, {"x": torch.randn(2, 5, 12)}, training=True, dynamic=False)


def residual():
    """The first two blocks of `resnet_digits`; the third is as the second."""
    options = {"width": 0.0625, "stem": "cifar", "classes": 10, "channels": 1, "size": 8}
    return resnet("two blocks", basic_block, (1, 1), batch=4, **options)


NETWORKS = {
    "mlp": (lambda: mlp(batch=4), "cross_entropy"),
    "lenet": (lambda: lenet(batch=4, size=12), "cross_entropy"),
    "residual network": (residual, "cross_entropy"),
    "transformer block": (block, "mse"),
}


def training_step(network):
    build, loss = NETWORKS[network]
    model = gg.from_onnx(build())
    forward = inline_model(model, True).forward(ResolvedLoss(model, loss), [])
    return build_step(forward, model.trainable(), gg.optim.SGD(0.1, momentum=0.9))


@cache
def lowered(network, arch):
    """Return the training step, lowered, and a record of each kernel."""
    records = []
    return pipeline.lower(training_step(network), gpu(arch), records), records


def gpu(arch):
    return gg.target({"kind": "cuda", "arch": arch})


def kernels(mod):
    return [name.name_hint for name, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)]


@pytest.mark.parametrize(
    ("network", "arch"),
    [
        ("mlp", "sm_80"),
        ("mlp", "sm_90"),
        ("lenet", "sm_80"),
        ("residual network", "sm_90"),
        ("transformer block", "sm_90"),
    ],
)
def test_every_kernel_is_device_code(network, arch):
    mod, records = lowered(network, arch)
    # What updates all parameters is made of scheduled kernels, and of no rule itself.
    of_rules = [name for name in kernels(mod) if "_horizontal" not in name]
    assert {name.removesuffix("_in_place") for name in of_rules} <= {r.name for r in records}
    assert {record.rule for record in records} <= {rule.name for rule in scheduling_rules()}
    executable = pipeline.generate(mod, gpu(arch))
    (source,) = executable_sources(executable)
    on_device = set(re.findall(r"(\w+?)_kernel(?:_\d+)?\(", source))
    called = set(re.findall(r"^@(\S+) packed_func;", executable.as_text(), re.MULTILINE))
    # Some kernels nobody calls: reshapes that became views.
    assert {name for name in called if not name.startswith("vm.")} <= on_device
    assert on_device == set(kernels(mod))


@pytest.mark.parametrize("count", [1, 3])
def test_kernels_that_no_rule_schedules_are_named(count):
    mod, _ = around("schedule_threads", training_step("mlp"), gpu("sm_90"))
    mod = mod.clone()
    planted = sorted(kernels(mod))[:count]
    unbound = Rule("unbound", lambda func, _: func)
    for name in kernels(mod):
        if name not in planted:
            del mod[name]
    with pytest.raises(LoweringError) as raised:
        schedule_threads(mod, gpu("sm_90"), rules=[unbound])
    assert f"{count} kernel(s) would run on the host" in str(raised.value)
    for name in planted:
        assert name in str(raised.value)


@pytest.mark.parametrize("count", [1, 3])
def test_host_code_after_scheduling_is_named(count):
    """What is planted behind the schedules is found where code is generated."""
    mod = lowered("mlp", "sm_90")[0].clone()
    planted = sorted(kernels(mod))[:count]
    for name in planted:
        mod[name] = on_host(mod[name])
    with pytest.raises(LoweringError, match="would run on the host") as raised:
        pipeline.generate(mod, gpu("sm_90"))
    found = re.findall(r"(\w+) \(it stores to memory\)", str(raised.value))
    assert found == planted


def on_host(func):
    """Return a function of the same parameters that writes without threads."""
    out = func.params[-1]
    zero = [0] * len(out.shape)
    body = tvm.tirx.BufferStore(out, tvm.tirx.const(0, out.dtype), zero)
    return func.with_body(body).with_attr(SCHEDULED, True)


@needs_nvcc
def test_machine_code():
    executable = gg.compile(training_step("mlp"), {"kind": "cuda", "arch": "sm_90"})
    assert executable_sources(executable)


def windowed():
    """Return what a step of two micro-batches is made of."""
    optimizer = gg.optim.AdamW(0.1, clip_norm=1.0)
    model = gg.from_onnx(mlp(batch=4))
    return recipe(model, "cross_entropy", optimizer, None, gpu("sm_90"), 0, "auto", accumulate=2)


@needs_nvcc
def test_machine_code_of_a_micro_batch():
    """Whether it opens its window is asked of several elements at once."""
    made = windowed()
    assert executable_sources(gg.compile(made.step(made.forward([])), gpu("sm_90")))


@pytest.mark.parametrize("part", ["micro-batch", "end"])
def test_a_step_of_several_micro_batches(part):
    made = windowed()
    mod = made.end_of_window() if part == "end" else made.step(made.forward([]))
    lowered = pipeline.lower(mod, gpu("sm_90"))
    [function] = [f for f in lowered.functions.values() if DONATED in (f.attrs or {})]
    assert sorted(map(list, function.attrs[DONATED])) == sorted(
        map(list, function.attrs[DONATED_DONE])
    )
