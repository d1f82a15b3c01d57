"""Imported first: makes ``bench`` and the repository importable for the programs of this folder."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

sys.path[1:1] = [str(ROOT / "bench"), str(ROOT)]
