"""A process that holds TVM, and nothing else, and runs each program in a fork of its own.

TVM is imported once; each program finds it as new, and may end its process. It is given the path of
a program on a line, and answers with a line: `shown`, `mended`, `failed`, or how the fork ended.
What a program prints goes to a file beside it.
"""

import contextlib
import os
import runpy
import signal
import sys
import traceback

import onnx.parser  # noqa: F401
import tvm.relax.frontend.onnx  # noqa: F401

SECONDS = 60
"""After which a program is ended."""

SHOWN, MENDED, FAILED = 10, 11, 12


def run(path: str) -> int:
    output = os.open(f"{path}.output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(SECONDS)
    try:
        return SHOWN if runpy.run_path(path)["shows"]() else MENDED
    except BaseException:
        traceback.print_exc()
        return FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def answer(path: str) -> str:
    child = os.fork()
    if not child:
        os._exit(run(path))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    names = {SHOWN: "shown", MENDED: "mended", FAILED: "failed", -signal.SIGALRM: "endless"}
    return names.get(code, f"ended by {code}")


with contextlib.suppress(KeyboardInterrupt):
    for line in sys.stdin:
        print(answer(line.rstrip("\n")), flush=True)
