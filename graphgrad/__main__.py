"""``python -m graphgrad`` is the command ``graphgrad``."""

import sys

from .cli.main import main

sys.exit(main())
