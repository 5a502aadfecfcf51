"""Reading arguments."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Answers bad arguments with one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments and exit."""
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def token_count(text: str) -> int:
    """Return a token count as an argument gives it.

    Raises:
        argparse.ArgumentTypeError: the text is no integer from 0 to 10¹².
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"{text!r} is not a token count: give an integer of at least 0")
    return int(text)
