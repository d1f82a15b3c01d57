"""Every defect of the ledger is there, in TVM alone; one that is not can be taken out."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphgrad.tvm_fixes import ledger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs run in forks")

NAMES = ledger.names()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Return a function that runs a program, and returns what came of it and what it printed."""
    folder = tmp_path_factory.mktemp("programs")
    # Settings of ours (the tests' own conftest makes some) would hide what they work around.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as server:

        def run(name):
            path = folder / f"{name}.py"
            path.write_text(ledger.program(name))
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            answer = server.stdout.readline().strip()
            output = Path(f"{path}.output").read_text(errors="replace")
            return answer, output[-2000:]

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
