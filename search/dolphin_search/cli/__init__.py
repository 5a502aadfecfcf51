"""The command ``dolphin-search``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from dolphin_router.cli.arguments import OneLineParser
from dolphin_router.contract import DocumentError
from dolphin_search.cli import compare, demo, learn
from dolphin_sim.cli.problem_arguments import ArgumentError

BAD_INPUT = 2
FAILURE = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for bad input, 1 for a failure, 130 when interrupted."""
    parser = OneLineParser(prog="dolphin-search", description="Learns routing tables and compares them with rules.")
    parser.add_argument("--version", action="version", version=f"dolphin-search {version('dolphin-routing')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (learn, compare, demo):
        summary = (module.__doc__ or "").strip()
        command = commands.add_parser(module.NAME, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    try:
        arguments = parser.parse_args(argv)
        # The words after the command, for a command that has to read them twice.
        arguments.words = list(sys.argv[1:] if argv is None else argv)[1:]
        code: int = arguments.run(arguments)
    except SystemExit as end:  # argparse: --help, --version, bad arguments
        return int(end.code or 0)
    except (ArgumentError, DocumentError, ValueError) as error:
        print(f"dolphin-search: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"dolphin-search: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("dolphin-search: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code
