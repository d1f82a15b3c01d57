"""Run everything in this folder; README.md says how. In a kit, this file is ``run.py``."""

import runpy
import sys
from pathlib import Path

programs = Path(__file__).resolve().parent / "bench" / "gpu"
sys.path.insert(0, str(programs))
runpy.run_path(str(programs / "run.py"), run_name="__main__")
