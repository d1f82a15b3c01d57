"""A program whose kernel writes where no memory is; prints what each question then gets.

python -m tests.cuda.device.fault
"""

import contextlib
import os

import numpy as np
import tvm
from tvm.script import tirx as T

import graphgrad as gg
from graphgrad.errors import DeviceError
from graphgrad.lower.cuda.compiler import compiling_for
from tests.cuda.device.running import gpu
from tests.train.nets import perceptron


@T.prim_func
def wild(x: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        x[i + 1099511627776] = T.float32(1)


x, y = np.ones((8, 4), "float32"), np.arange(8) % 3
step = gg.train_step(perceptron(), target=gpu())
loss = step(x, y)
last = step(x, y)
float(loss)
target = gg.target(gpu())
with compiling_for(target):
    kernel = tvm.compile(wild, target)
kept = tvm.runtime.tensor(np.zeros(4, "float32"), tvm.cuda())  # giving it back would fail too
with contextlib.suppress(RuntimeError):  # an emulated device says so at once
    kernel(kept)
for ask in (lambda: float(last), lambda: step.params, lambda: step.skipped, lambda: step(x, y)):
    try:
        ask()
        print("no error", flush=True)
    except DeviceError as error:
        print(error, flush=True)
os._exit(0)  # without giving memory back
