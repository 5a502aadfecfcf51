"""Keeping a study's rounds where an interruption does not reach them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import rfc8785

from dolphin_router.contract import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    CheckpointRound,
    load_document,
    save_document,
)
from dolphin_router.decision import Action
from dolphin_search.measurement import Measurement
from dolphin_search.samplers.base import Round

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | dict[str, "JsonValue"]


def fingerprint(settings: dict[str, JsonValue]) -> str:
    """Return a hash of all that the rounds depend on; equal settings have equal ones."""
    return f"sha256:{hashlib.sha256(rfc8785.dumps(settings)).hexdigest()}"


class CheckpointFile:
    """The rounds in a file, written anew after each.

    Args:
        path: of the file.
        fingerprint: of the search. A file with another one belongs to another search.
    """

    def __init__(self, path: Path, *, fingerprint: str) -> None:
        self.path = path
        self._fingerprint = fingerprint

    def load(self) -> list[Round]:
        """Return the rounds in the file.

        Raises:
            DocumentError: there is no such file or it holds no checkpoint.
            ValueError: the checkpoint belongs to another search.
        """
        document = load_document(Checkpoint, self.path)
        if document.fingerprint != self._fingerprint:
            raise ValueError(
                f"{self.path}: this checkpoint is of a search with other settings; give the same ones as then, or "
                "remove the file to start anew"
            )
        return [_round(entry) for entry in document.rounds]

    def save(self, rounds: Sequence[Round]) -> None:
        """Replace the file's content, all at once.

        Raises:
            OSError: it cannot be written; the old content stays.
        """
        document = Checkpoint(
            format=CHECKPOINT_FORMAT,
            fingerprint=self._fingerprint,
            rounds=tuple(
                CheckpointRound(
                    actions=tuple(Action(action).text for action in entry.actions), **asdict(entry.measurement)
                )
                for entry in rounds
            ),
        )
        save_document(self.path, document)

    def remove(self) -> None:
        """Delete the file, once its search has its result."""
        self.path.unlink(missing_ok=True)


def _round(entry: CheckpointRound) -> Round:
    fields = entry.model_dump()
    actions = tuple(int(Action.from_text(action)) for action in fields.pop("actions"))
    return Round(actions, Measurement(**fields))
