"""``dolphin-router table``: read routing tables."""

from __future__ import annotations

import argparse

from . import diff, explain, show, validate


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (show, validate, explain, diff):
        summary, _, rest = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            module.NAME,
            help=summary,
            description=f"{summary}\n{rest}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, refuse=command.error)
