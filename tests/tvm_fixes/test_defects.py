"""Every defect of the ledger is there, in TVM alone; one that is not can be taken out."""

import os
import pkgutil

import pytest

from graphgrad.tvm_fixes import ledger
from tests.forks import CAN_FORK, forks

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="programs run in forks")

NAMES = ledger.names()


SHOWN, MENDED, FAILED = 10, 11, 12
OUTCOME = {SHOWN: "shown", MENDED: "mended", FAILED: "failed"}
"""What the status of a process tells; any other is of one that TVM has ended."""

PROGRAM = f"""
import os, sys

def end(status):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a defect may show when a process ends, which is another matter

sys.excepthook = lambda *error: (sys.__excepthook__(*error), end({FAILED}))
%s
end({SHOWN} if shows() else {MENDED})
"""

SECONDS = 60
"""After which a program is ended."""


@pytest.fixture(scope="module")
def outcome():
    """Return a function that runs a program, and returns what came of it and what it printed.

    Its process holds TVM, and nothing of ours: that would hide what it works around.
    """
    # So would settings of ours; the tests' own conftest makes some.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    with forks("onnx.parser", "tvm.relax.frontend.onnx", environment=environment) as processes:

        def run(name):
            program = PROGRAM % ledger.program(name)
            done = processes.run(program, environment=environment, seconds=SECONDS)
            answer = OUTCOME.get(done.returncode, f"ended by {done.returncode}")
            return answer, (done.stdout + done.stderr)[-2000:]

        yield run


@pytest.mark.parametrize("name", NAMES)
def test_defect_is_there(name, outcome):
    known = ledger.defect(name)
    answer, output = outcome(name)
    if answer == "mended":
        work_around = ", ".join(known.worked_around_in)
        pytest.fail(
            f"TVM seems mended: {known.title}. Remove graphgrad/tvm_fixes/defects/{name}.py, and "
            f"what works around it in {work_around}"
        )
    assert answer == "shown" or (known.crashes and answer.startswith("ended by")), output


@pytest.mark.parametrize("name", NAMES)
def test_work_around_exists(name):
    known = ledger.defect(name)
    assert known.worked_around_in
    for module in known.worked_around_in:
        pkgutil.resolve_name(module)


def test_programs_are_of_tvm_alone():
    for name in NAMES:
        assert "graphgrad" not in ledger.program(name)
        assert "ledger" not in ledger.program(name)
