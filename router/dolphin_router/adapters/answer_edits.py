"""Changes to a decode worker's answer, whole or streamed, that make it that of an undivided engine."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw

from .base import AnswerEdit, PrefillAnswer

_NULL: Final = b"null"
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode


class ObjectEdit(AnswerEdit):
    """Edits each JSON object of one answer in which a word occurs, and passes all else byte for byte.

    Engines put an event's JSON on one ``data:`` line, so that lines are the unit: what is held back is at most an
    unfinished one, and how the stream was cut into pieces does not show in what comes out.
    """

    word: ClassVar[bytes]
    """The name of the member with its quotes: an object without it is not even parsed. It cannot occur in generated
    text, where quotes are escaped."""
    value: ClassVar[re.Pattern[bytes]]
    """The member with any value but null, which an undivided engine has as well."""

    def __init__(self) -> None:
        self._held = b""

    @abstractmethod
    def edit(self, data: bytes) -> bytes:
        """Return a JSON object edited, or the same bytes when there is nothing to change or it is not one."""

    def whole(self, body: bytes) -> bytes:
        return self.edit(body) if self._concerns(body) else body

    def events(self, piece: bytes) -> bytes:
        if self._held:
            piece = self._held + piece
        end = piece.rfind(b"\n") + 1
        self._held = piece[end:]
        return self._edit_lines(piece[:end])

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return self._edit_lines(held)

    def _concerns(self, data: bytes) -> bool:
        # A search for bytes is much faster than one for a pattern, and mostly finds nothing.
        place = data.find(self.word)
        while place >= 0:
            if self.value.match(data, place) is not None:
                return True
            place = data.find(self.word, place + 1)
        return False

    def _edit_lines(self, lines: bytes) -> bytes:
        if not self._concerns(lines):
            return lines
        return b"".join([self._edit_line(line) for line in lines.splitlines(keepends=True)])

    def _edit_line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or not self._concerns(line):
            return line
        data = line[5:].strip()
        edited = self.edit(data)
        return line if edited is data else line.replace(data, edited, 1)


class TransferParametersRemoved(ObjectEdit):
    """Takes out a top-level ``kv_transfer_params``; null, as an undivided engine has it, stays."""

    word = b'"kv_transfer_params"'
    value = re.compile(rb'"kv_transfer_params"\s*:\s*[^n\s]')

    def edit(self, data: bytes) -> bytes:
        members = _members(data)
        if members is None or bytes(members.get("kv_transfer_params", _NULL)) == _NULL:
            return data
        del members["kv_transfer_params"]
        return msgspec.json.encode(members)


class CachedTokensReplaced(ObjectEdit):
    """Puts the prefill worker's count of cached tokens where the decode worker reports its own, which counts the whole
    transferred prompt.

    vLLM leaves the details null when nothing was cached (``serving_chat.py`` of 0.11.0: ``if
    enable_prompt_tokens_details and num_cached_tokens``). So they become null where the prefill worker gave no count.
    """

    word = b'"prompt_tokens_details"'
    value = re.compile(rb'"prompt_tokens_details"\s*:\s*[^n\s]')

    def __init__(self, cached_tokens: int | None) -> None:
        super().__init__()
        self._cached_tokens = cached_tokens

    def prefill_answered(self, answer: PrefillAnswer) -> None:
        self._cached_tokens = answer.cached_tokens

    def edit(self, data: bytes) -> bytes:
        members = _members(data)
        usage = None if members is None else _members(members.get("usage"))
        details = None if usage is None else _members(usage.get("prompt_tokens_details"))
        if members is None or usage is None or details is None:
            return data
        if self._cached_tokens is None:
            usage["prompt_tokens_details"] = Raw(_NULL)
        else:
            details["cached_tokens"] = Raw(b"%d" % self._cached_tokens)
            usage["prompt_tokens_details"] = Raw(msgspec.json.encode(details))
        members["usage"] = Raw(msgspec.json.encode(usage))
        return msgspec.json.encode(members)


def _members(value: Any) -> dict[str, Raw] | None:
    """Return the members of an object, given as bytes or :class:`msgspec.Raw`; None for everything else.

    The type is left open since compiled code would hold it to what msgspec's type information says, and there ``Raw``
    is a kind of ``bytes``.
    """
    if value is None:
        return None
    try:
        return _read_members(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
