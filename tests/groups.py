"""Which tests run in one process, where several share the suite: those that compile the same.

Tests of a file have helpers and compiled programs in common. The tests of a rule, in whatever file,
compile the same samples; so they are a group, and the file that holds most of them is many.
"""

import re

from xdist.scheduler import LoadScopeScheduling

OF_RULES = ("tests/registry/test_rules.py", "tests/registry/test_torch.py")
"""The files whose tests begin with the name of a rule, and share `tests.registry.checkers`."""

_RULE = re.compile(r"\[((?:relax|graphgrad)\.[\w.]*)")


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    file = nodeid.partition("::")[0]
    rule = _RULE.search(nodeid) if file in OF_RULES else None
    return f"rule {rule[1]}" if rule else file


class ByGroup(LoadScopeScheduling):
    """Gives whole groups to processes, the ones of most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
