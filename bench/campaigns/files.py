"""The campaign of files: whatever a file holds, it is read rightly or refused by an error of ours.

    python bench/campaigns/files.py --cases 50000 [--seed N] [--jobs N] [--tally FILE]

ONNX files, .npz data sets, checkpoints and exports are damaged byte by byte, field by field, and by
edits that an attacker would think of: sizes that lie, paths that leave the folder, bombs, cycles.
None may end a process, raise an error of somebody else, or need more than 30 seconds or 2 GB.
"""

from __future__ import annotations

import sys
from functools import partial

import data_files
import numpy as np
import onnx_files
import paths  # noqa: F401 (where the modules of `bench` are found)
from campaign import Campaign, Case, main

_DATA = (data_files.npz, data_files.checkpoint, data_files.export)
_OF_DATA = 0.3  # of the cases


def judge(case: Case, nodes: bool) -> None:
    """Make a file and read it; with `nodes`, files are also made of the standard's own tests."""
    rng = case.rng()
    if rng.random() < _OF_DATA:
        _DATA[int(rng.integers(len(_DATA)))](case, rng)
    else:
        onnx_files.judge(onnx_files.make(case, rng, nodes), rng)


FILES = Campaign("files", partial(judge, nodes=True))
FEW = Campaign("few-files", partial(judge, nodes=False))
"""Without the standard's tests, which take seconds to collect."""


if __name__ == "__main__":
    np.seterr(all="ignore")
    onnx_files.bases(True)  # before the workers fork: made once
    sys.exit(main(FILES))
