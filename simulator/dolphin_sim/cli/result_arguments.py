"""The arguments that name files for results: whether they can be written is found out before the work."""

from __future__ import annotations

from pathlib import Path

from dolphin_sim.cli.problem_arguments import ArgumentError
from dolphin_sim.result_file import check_writable


def check_result_files(**paths: Path | None) -> None:
    """Refuse paths that cannot be written, and two that are the same file. What the files hold stays.

    Args:
        paths: by the name of the argument, without its dashes; None where it was left out.

    Raises:
        ArgumentError: a path that cannot be used; the message names the argument.
    """
    arguments: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        argument = f"argument --{name}"
        try:
            check_writable(path)
            place = path.resolve()
        except (OSError, ValueError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise ArgumentError(f"{argument}: {str(path)!r} cannot be written: {reason}; give another path") from error
        is_stream = path.exists() and not path.is_file()
        if place in arguments and not is_stream:
            raise ArgumentError(f"{argument}: {path} is the file of {arguments[place]} too; give another path")
        arguments[place] = argument.removeprefix("argument ")
