import threading

from tvm import relax

from ..ledger import Defect


def shows() -> bool:
    inside, done = threading.Event(), threading.Event()

    def build() -> None:
        with relax.BlockBuilder().function("f", []):
            inside.set()
            done.wait()

    thread = threading.Thread(target=build)
    thread.start()
    inside.wait()
    found = relax.BlockBuilder.current()
    done.set()
    thread.join()
    return found is not None


DEFECT = Defect(
    title="[Relax] Open BlockBuilders are on one stack for all threads",
    kind="wrong result",
    happens=(
        "`BlockBuilder.current()` returns the builder that another thread is inside of, and "
        "whatever asks for it writes there."
    ),
    expected="Each thread has a stack of its own.",
    worked_around_in=("graphgrad.ir.compile_lock",),
)
