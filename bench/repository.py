"""The repository's root on the path, so that a benchmark can import the cases of the tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
