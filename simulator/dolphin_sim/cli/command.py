"""What the commands of simulator and search have in common: subcommands, exit codes, errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Protocol

from dolphin_router.cli.arguments import OneLineParser
from dolphin_sim.cli.problem_arguments import ArgumentError

BAD_INPUT = 2
FAILURE = 1
INTERRUPTED = 130


class Subcommand(Protocol):
    """A module with one subcommand; its docstring is the summary."""

    NAME: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


def run_command(prog: str, description: str, subcommands: Sequence[Subcommand], argv: Sequence[str] | None) -> int:
    """Run the subcommand that ``argv`` names and return its exit code: 2 for bad input, 1 for a failure, 130 when
    interrupted.

    Args:
        prog: name of the command.
        description: what it is for.
        subcommands: its modules.
        argv: the words after the command's name; None for those that the process was started with.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = OneLineParser(prog=prog, description=description)
    parser.add_argument("--version", action="version", version=f"{prog} {version('dolphin-routing')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in subcommands:
        summary = (module.__doc__ or "").strip()
        command = commands.add_parser(module.NAME, help=summary, description=summary)
        module.add_arguments(command)
        # The parser and its words are for a subcommand that has to read them twice.
        command.set_defaults(run=module.run, parser=command, words=words[1:])
    try:
        arguments = parser.parse_args(words)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as end:  # argparse: --help, --version, bad arguments
        return int(end.code or 0)
    except (ArgumentError, ValueError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough. Python would complain when it flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        print(f"{prog}: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code
