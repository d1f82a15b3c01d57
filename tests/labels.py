"""Names of test cases: the same in every process, so that the suite can run on several cores."""

import re


def label(value):
    """Return a value's name if it has one, else its text without memory addresses."""
    return getattr(value, "__name__", None) or re.sub(r" at 0x[0-9a-f]+", "", str(value))
