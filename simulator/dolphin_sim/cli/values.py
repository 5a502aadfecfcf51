"""Numbers as arguments give them: each function returns one or raises ``argparse.ArgumentTypeError``."""

from __future__ import annotations

import argparse
import math

from dolphin_router.contract import Split


def finite_number(text: str) -> float:
    """Return any number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def positive_number(text: str) -> float:
    """Return a number above 0."""
    value = finite_number(text)
    if value <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def number_from_0(text: str) -> float:
    """Return a number of at least 0."""
    value = finite_number(text)
    if value < 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return value


def seed(text: str) -> int:
    """Return an integer from 0 to 10¹⁵."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: give an integer of at least 0")
    return int(text)


def count(text: str) -> int:
    """Return an integer from 1 to 10⁶."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def split(text: str) -> Split:
    """Return a split such as ``2P2D``."""
    try:
        return Split.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
