"""Files that are replaced all at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace_file(path: str | Path, content: bytes) -> None:
    """Make ``content`` the file's content. Whoever reads the path meanwhile sees the old one or the new, never a part.

    Raises:
        OSError: the file cannot be written; what was at the path stays.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
