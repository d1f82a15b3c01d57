"""Plans of every contraction that a library is to compute, made without a GPU.

    python bench/gpu/plan.py [--match REGEX] [--precision bfloat16 float16 tf32 float32]
                             [--device h200 a100] [--json] [--check] [--quick]

Needs cuDNN (`pip install 'graphgrad[cuda-libs]'`) and a C compiler; torch for the networks that its
exporter writes. For each network, precision and device it tells how many contractions a training
step has, as it is compiled, how many of them are different problems, how many of these cuDNN has a
plan for, and to how many the cost model prefers a kernel of ours; how many calls of cuDNN there are
with an epilogue, and of attention; the largest workspace, and how long planning took.

`--check` exits with 1, and names what falls short, if a problem that a library should compute has
no plan, if attention that is an op of its own is no call of cuDNN, if a plan wants more than 512
MiB, or if planning takes more than 60 seconds. Matrix products of float32 without TF32 are not
among these: cuDNN has no engine for them that can be planned without a device, and kernels of ours
compute them. `--quick` is ResNet-18 on an H200.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import tvm
from full_networks import NETWORKS
from table import table

import graphgrad as gg
from graphgrad.ir.visits import nodes_in
from graphgrad.lower.cuda.library.attention import call_attention_library
from graphgrad.lower.cuda.library.cost import library_pays
from graphgrad.lower.cuda.library.devices import ARCHITECTURES, PROFILES
from graphgrad.lower.cuda.library.offline import plan_all
from graphgrad.lower.cuda.library.select import call_libraries, sites_of
from graphgrad.lower.pipeline import PIPELINES, Lowering
from graphgrad.ops.fused_attention import ATTENTION, GRADIENT
from graphgrad.runtime.cudnn.plans import WORKSPACE_LIMIT, Plan
from graphgrad.runtime.cudnn.problem import MATMUL, Problem
from graphgrad.train.update import STEP

PRECISIONS = ("bfloat16", "float16", "tf32", "float32")
SECONDS = 60.0


@dataclass
class Planned:
    """What is known of the contractions of a step.

    Attributes
    ----------
    network, precision, device : str
    contractions : int
        Convolutions, their gradients and matrix products of the step.
    problems : int
        Those that differ.
    planned : int
        Problems that have a plan.
    epilogues, attentions : int
        Calls of cuDNN in the step that compute an epilogue, and attention or its gradient.
    own : int
        Problems with a plan that a kernel of ours is estimated to compute faster.
    unplanned : dict of str to str
        By a problem in words, why it has none.
    workspace : int
        Bytes of the largest workspace of those that the library computes.
    seconds : float
        Wall time of planning.
    """

    network: str
    precision: str
    device: str
    contractions: int
    problems: int
    planned: int = 0
    own: int = 0
    epilogues: int = 0
    attentions: int = 0
    unplanned: dict[str, str] = field(default_factory=dict)
    workspace: int = 0
    seconds: float = 0.0

    def shortfalls(self) -> list[str]:
        """What `--check` names."""
        where = f"{self.network} in {self.precision} on {self.device}"
        missing = [
            f"{where}: no plan for {problem}: {why}" for problem, why in self.unplanned.items()
        ]
        if self.workspace > WORKSPACE_LIMIT:
            missing.append(f"{where}: {self.workspace} bytes of workspace")
        if self.seconds > SECONDS:
            missing.append(f"{where}: planned in {self.seconds:.0f} s, of at most {SECONDS:.0f}")
        if not self.contractions:
            missing.append(f"{where}: no contraction is found")
        return missing


@functools.cache
def _step(network: str, precision: str, arch: str) -> tvm.IRModule:
    """A network's training step as the passes get it that have cuDNN compute."""
    mod = NETWORKS[network].step(precision, arch)
    context = Lowering(gg.target({"kind": "cuda", "arch": arch}))
    return PIPELINES["cuda"].run(mod, context, until="call_attention_library")


def planned(network: str, precision: str, device: str) -> Planned:
    """Plan the contractions and the attention of a network's training step."""
    arch, tf32 = ARCHITECTURES[device], precision == "tf32"
    target = gg.target({"kind": "cuda", "arch": arch})
    step = _step(network, precision, arch)
    start = time.perf_counter()
    attending = call_attention_library(step, target)
    compiled = call_libraries(attending, target, tf32)
    seconds = time.perf_counter() - start
    problems = [site.problem for site in sites_of(attending, tf32).values()]
    answers = plan_all(problems, PROFILES[device])  # known already
    result = Planned(network, precision, device, len(problems), len(answers), seconds=seconds)
    for problem, answer in answers.items():
        if isinstance(answer, Plan):
            result.planned += 1
            result.own += not library_pays(answer)
        elif not _has_no_engine(problem):
            result.unplanned[_in_words(problem)] = answer
    for call in nodes_in(attending[STEP], tvm.ir.Call):
        if str(getattr(call.op, "name", "")) in (ATTENTION, GRADIENT):
            result.unplanned[str(call.op.name)] = "it is no call of cuDNN"
    for plan in _plans(compiled):
        result.epilogues += bool(plan.problem.epilogue)
        result.attentions += plan.problem.op.startswith("attention")
        result.workspace = max(result.workspace, plan.workspace)
    return result


def _plans(mod: tvm.IRModule) -> Iterator[Plan]:
    """The plans of the calls of cuDNN in a step."""
    for call in nodes_in(mod[STEP], tvm.ir.Call):
        if str(getattr(call.op, "name", "")) == "relax.call_dps_packed":
            texts = (x for x in call.args[1].fields if isinstance(x, tvm.ir.StringImm))
            yield from (Plan.from_json(str(text.value)) for text in texts)


def _has_no_engine(problem: Problem) -> bool:
    """Whether cuDNN cannot plan a problem without a device: products of plain float32."""
    return problem.op == MATMUL and problem.inputs[0].dtype == "float32" and not problem.tf32


def _in_words(problem: Problem) -> str:
    shapes = " x ".join("x".join(map(str, form.shape)) for form in problem.inputs)
    window = f", strides {problem.strides}" if problem.strides else ""
    return f"{problem.op} of {shapes}{window}"


def _all(arguments: argparse.Namespace) -> Iterator[Planned]:
    for network in NETWORKS:
        if re.search(arguments.match, network):
            for precision in arguments.precision:
                for device in arguments.device:
                    print(f"{network} {precision} {device}", file=sys.stderr)
                    yield planned(network, precision, device)


def _text(results: Sequence[Planned]) -> str:
    header = ["network", "precision", "device", "contractions", "problems", "planned", "own"]
    header += ["epilogues", "attention"]
    rows = [
        [
            each.network,
            each.precision,
            each.device,
            *map(str, (each.contractions, each.problems, each.planned, each.own)),
            *map(str, (each.epilogues, each.attentions)),
            f"{each.workspace / 2**20:.1f}",
            f"{each.seconds:.1f}",
        ]
        for each in results
    ]
    return table([*header, "workspace MiB", "seconds"], rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default="", help="only networks whose name matches")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--device", nargs="+", choices=ARCHITECTURES, default=[*ARCHITECTURES])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with 1 where something is short")
    parser.add_argument("--quick", action="store_true", help="ResNet-18 on an H200 alone")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.match, arguments.device = "^resnet18-64$", ["h200"]
    return arguments


def main() -> int:
    """Plan; return 1 if `--check` finds something short."""
    arguments = _arguments()
    results = list(_all(arguments))
    shortfalls = [each for result in results for each in result.shortfalls()]
    if arguments.json:
        print(json.dumps({"plans": [asdict(each) for each in results], "short": shortfalls}))
    else:
        print("\n".join([_text(results), *shortfalls]))
    return int(arguments.check and bool(shortfalls))


if __name__ == "__main__":
    sys.exit(main())
