"""The command ``dolphin-sim``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from dolphin_router.cli.arguments import OneLineParser
from dolphin_router.contract import DocumentError
from dolphin_sim.cli import profiles, run, workloads
from dolphin_sim.cli.problem_arguments import ArgumentError

BAD_INPUT = 2
FAILURE = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for bad input, 1 for a failure, 130 when interrupted."""
    parser = OneLineParser(prog="dolphin-sim", description="Simulates a cluster of prefill and decode workers.")
    parser.add_argument("--version", action="version", version=f"dolphin-sim {version('dolphin-routing')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (run, profiles, workloads):
        summary = (module.__doc__ or "").strip()
        command = commands.add_parser(module.NAME, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    try:
        arguments = parser.parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as end:  # argparse: --help, --version, bad arguments
        return int(end.code or 0)
    except (ArgumentError, DocumentError, ValueError) as error:
        print(f"dolphin-sim: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough. Python would complain when it flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        print(f"dolphin-sim: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("dolphin-sim: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code
