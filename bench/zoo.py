"""The zoo models of the installed onnx ("light"): do they differentiate, and rightly?

    python bench/zoo.py [--match REGEX] [--json]

Nine networks of 1.4 to 144 million weights, at full size. Their weights are made by ConstantOfShape
nodes, and equal constants hide errors. So after each file has been imported as it is, every value
that feeds a weight slot (weights, biases, the scales, shifts, means and variances of norms) is
redrawn at random; the model is promoted to float64, and the gradients of the input and of all those
values, for a random cotangent, are compared with central differences:

- along random directions of groups of values. A group holds values that weigh about the same, so
  that none hides behind a heavier one. Every value with a gradient is in one group;
- a value whose gradient is zero is moved alone, and the outputs must not move.

The step is 1e-7 of a value's size, because each ReLU and each pooling window that changes sides
within the step adds an error proportional to it; the tolerance is 1e-5 of the typical derivative of
the group, plus what rounding adds.

The stock `relax.transform.Gradient` manages 2 of the 9. On two cores the command takes about
MINUTES minutes, and vgg19 needs GIGABYTES GB of memory.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from judges import WRONG, first_line
from machine import facts, versions
from memory import peak_megabytes
from table import table
from tvm import relax
from zoo_weights import random_weights

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.frontend.mode import specialise
from graphgrad.lower.arrays import to_tensor
from graphgrad.promote import promote_to_float64

AGREES, MISSING = "agrees", "missing"
