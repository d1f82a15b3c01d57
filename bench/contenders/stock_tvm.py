"""Stock TVM: its own importer, Gradient pass, trainer, optimizer and default pipeline."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.relax.training import SetupTrainer, Trainer, loss, optimizer
from workload import LEARNING_RATE, MOMENTUM, Workload

from graphgrad import target

INCLUDES = (
    "SetupTrainer (DecomposeOpsForTraining, Gradient, MomentumSGD) and Trainer.update: forward, "
    "loss, backward, statistics in one function, the optimizer in another; default pipeline for "
    "the host"
)
STATISTICS = (".running_mean", ".running_var")


def prepare(workload: Workload, threads: int) -> Callable[[], float]:
    """Return the step of TVM's own trainer."""
    weights = workload.weights()
    images, labels = workload.batch()
    module = backbone(workload.proto())
    logits = module["backbone"].ret_ty.fields[0]
    module = SetupTrainer(
        loss.CrossEntropyLoss(),
        optimizer.MomentumSGD(LEARNING_RATE, MOMENTUM),
        [logits, relax.TensorType(labels.shape, "int64")],
    )(module)
    for unused in ("backbone", "backbone_loss"):  # the trainer's update calls neither
        del module[unused]
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.compile(module, host_target(threads)), device)
    trainer = Trainer(module, machine, device, zero_init_param_state=False)
    params, state = split(list(weights))
    trainer.load_params([weights[name] for name in params])
    trainer.load_states([weights[name] for name in state])
    return lambda: float(trainer.update(images, labels).numpy())


def backbone(proto: onnx.ModelProto) -> tvm.IRModule:
    """Import a model in the form that `SetupTrainer` asks for.

    That is ``backbone(input, *params, *statistics) -> (logits, *new statistics)``. The importer
    keeps the new statistics only if they are outputs of the graph, and orders parameters as the
    file does.
    """
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            proto.graph.output.extend(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
                for name in node.output[1:]
            )
    main = from_onnx(proto, keep_params_in_input=True)["main"]
    initializers = [tensor.name for tensor in proto.graph.initializer]
    params, state = split(initializers)
    variables = dict(zip(initializers, main.params[1:], strict=True))
    builder = relax.BlockBuilder()
    order = [main.params[0], *(variables[name] for name in [*params, *state])]
    with builder.function("backbone", order):
        with builder.dataflow():
            for binding in main.body.blocks[0].bindings:
                builder.emit_normalized(binding)
            outputs = main.body.body
            fields = (
                [relax.TupleGetItem(outputs, index) for index in range(len(outputs.ty.fields))]
                if isinstance(outputs.ty, relax.TupleType)
                else [outputs]  # of a model without statistics
            )
            results = [builder.emit_output(field) for field in fields]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get().with_attrs({"param_num": len(params), "state_num": len(state)})


def split(names: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the parameters and those of the statistics."""
    state = [name for name in names if name.endswith(STATISTICS)]
    return [name for name in names if name not in state], state


def host_target(threads: int) -> tvm.target.Target:
    """Return this host as a target: a bare ``"llvm"`` would be a generic processor."""
    return target({"kind": "llvm", "num-cores": threads})
