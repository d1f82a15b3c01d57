"""Which tests run in one process, where several share the suite: those that compile the same.

Tests of a file have helpers and compiled programs in common. The tests of a rule, in whatever file,
compile the same samples; so they are a group, and the file that holds most of them is many.
"""

import re

from xdist.scheduler import LoadScopeScheduling

OF_RULES = ("tests/registry/test_rules.py", "tests/registry/test_torch.py")
"""The files whose tests begin with the name of a rule, and share `tests.registry.checkers`."""

LONG = (
    "tests/train/test_resnet_follows_torch.py",
    "tests/train/test_step_layout.py",
    "tests/test_readme.py",
    "tests/fallback/test_topi.py",
    "tests/cuda/test_on_emulator.py",
    "tests/frontend/converters/test_loss.py",
    "tests/layout/test_rules.py",
    "tests/models/test_exported.py",
    "tests/train/test_winograd.py",
    "tests/tvm_fixes/test_defects.py",
)
"""The files that take longest. They come first, so that at the end all processes have work."""

_RULE = re.compile(r"\[((?:relax|graphgrad)\.[\w.]*)")


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    file = nodeid.partition("::")[0]
    rule = _RULE.search(nodeid) if file in OF_RULES else None
    return f"rule {rule[1]}" if rule else file


def is_long(nodeid: str) -> bool:
    """Whether a test is in a file that takes long."""
    return nodeid.partition("::")[0] in LONG


class ByGroup(LoadScopeScheduling):
    """Gives whole groups to processes, in the order in which tests were collected."""

    def __init__(self, config, log):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
