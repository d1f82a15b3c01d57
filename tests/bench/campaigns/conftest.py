"""The programs of ``bench/campaigns`` find each other in their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "campaigns"))
