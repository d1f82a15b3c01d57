"""``python -m graphgrad`` is the command ``graphgrad``."""

import sys

from .cli import main

sys.exit(main())
