"""Check tables: one line for each file.

Exit code 0: all can be used. 2: one at least cannot; its line says why.
"""

from __future__ import annotations

import argparse

from dolphin_router.contract import DocumentError, load_table

NAME = "validate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a routing table")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each file and return 2 when one of them is bad."""
    code = 0
    for path in arguments.files:
        try:
            table = load_table(path)
        except DocumentError as error:
            print(error)
            code = 2
        else:
            print(f"{path}: ok, {table.split}, {len(table.decider.clusters)} clusters, {table.digest}")
    return code
