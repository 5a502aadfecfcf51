"""Files that hold results."""

from __future__ import annotations

import secrets
from pathlib import Path

from dolphin_router.atomic_file import replace_file


def check_writable(path: Path) -> None:
    """Find out whether :func:`write_result` can write there. What the file holds stays.

    Raises:
        OSError: it cannot.
    """
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        return
    if not path.absolute().parent.is_dir():
        raise NotADirectoryError(f"there is no folder {path.absolute().parent}")
    # A file is written beside the old one and then moved to its place: so the folder counts, and the file's name.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    draft.open("xb").close()
    draft.unlink()


def write_result(path: Path, content: bytes) -> None:
    """Make ``content`` the file's content, all at once; a terminal, a pipe and the like is written to.

    Raises:
        OSError: it cannot be written; what was at the path stays.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        replace_file(path, content)
