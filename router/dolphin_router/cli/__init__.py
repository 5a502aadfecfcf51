"""The command ``dolphin-router``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from dolphin_router.contract import DocumentError

from . import serve, table
from .arguments import OneLineParser

BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 when an argument or a file cannot be used."""
    parser = OneLineParser(prog="dolphin-router", description="Routes each request to local or remote prefill.")
    parser.add_argument("--version", action="version", version=f"dolphin-router {version('dolphin-routing')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve_parser = commands.add_parser("serve", help="run a router")
    serve.add_arguments(serve_parser)
    serve_parser.set_defaults(run=serve.serve)
    table.add_commands(commands.add_parser("table", help="read routing tables"))
    try:
        arguments = parser.parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as end:  # argparse: --help, --version, bad arguments
        return int(end.code or 0)
    except DocumentError as error:
        print(f"dolphin-router: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough. Python would complain when it flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
