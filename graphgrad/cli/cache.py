"""The command ``graphgrad cache``."""

import argparse
import json

from ..lower.codegen.cache.store import FOLDER, SIZE, SWITCH, chosen_store

DESCRIPTION = f"""\
Show the folder of compiled programs, which later processes need not compile again, or empty it.
{FOLDER} names another folder, {SIZE} the megabytes that it may take, {SWITCH}=0 turns it off.
"""

EXAMPLES = """\
examples:
  graphgrad cache
  graphgrad cache --clear
  graphgrad cache --json

"""


def run(arguments: argparse.Namespace) -> int:
    """Say where compiled programs are and how many; with ``--clear`` drop them first."""
    store = chosen_store()
    if store is not None and arguments.clear:
        store.clear()
    sizes = [] if store is None else store.sizes()
    if arguments.json:
        facts = {
            "folder": None if store is None else str(store.folder),
            "programs": len(sizes),
            "bytes": sum(sizes),
            "most_bytes": None if store is None else store.most_bytes,
        }
        print(json.dumps(facts))
    elif store is None:
        print(f"compiled programs are not kept: {SWITCH}=0, or there is no home directory")
    else:
        print(
            f"{store.folder}: {len(sizes)} compiled programs, {sum(sizes) / 2**20:.1f} of "
            f"{store.most_bytes / 2**20:.0f} MB"
        )
    return 0
