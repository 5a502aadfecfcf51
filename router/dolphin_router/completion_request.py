"""A completion request as the client sent it: what routing must know of it, and the rest byte for byte."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .messages.request import RequestMembers

CONTROL_MEMBERS: Final = frozenset(
    {
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "kv_transfer_params",
        "routed_dp_rank",
    }
)
"""Members by which workers find each other. A client's are removed: with them it could name any host as a worker."""


_LONG_PROMPT_BYTES: Final = 4096
_PROMPT_NAMES: Final = {True: re.compile(rb'"messages"\s*:\s*'), False: re.compile(rb'"prompt"\s*:\s*')}


class RequestError(ValueError):
    """The client's request cannot be read; the message is for the client."""


_read_members = msgspec.json.Decoder(RequestMembers).decode
_read_all = msgspec.json.Decoder(dict[str, Raw]).decode


def _has_control_members(fields: RequestMembers) -> bool:
    # Written out: a loop over names would cost as much as reading the whole body.
    return (
        fields.kv_transfer_params is not UNSET
        or fields.bootstrap_host is not UNSET
        or fields.bootstrap_port is not UNSET
        or fields.bootstrap_room is not UNSET
        or fields.data_parallel_rank is not UNSET
        or fields.disagg_prefill_dp_rank is not UNSET
        or fields.routed_dp_rank is not UNSET
    )


def without_control_members(body: bytes) -> bytes:
    """Return a body without :data:`CONTROL_MEMBERS`; one that is no JSON object, or has none, byte for byte."""
    try:
        members = _read_all(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body
    if members.keys().isdisjoint(CONTROL_MEMBERS):
        return body
    return msgspec.json.encode({name: value for name, value in members.items() if name not in CONTROL_MEMBERS})


class CompletionRequest:
    """One request for ``/v1/chat/completions`` or ``/v1/completions``."""

    __slots__ = ("body", "fields", "is_chat")

    def __init__(self, body: bytes, *, is_chat: bool) -> None:
        """Read a request's body.

        Raises:
            RequestError: it is not a JSON object, or a member that routing reads has the wrong type.
        """
        try:
            self.fields = _read_members(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise RequestError(f"the body is not a valid request: {error}") from error
        self.is_chat = is_chat
        self.body = body
        """Without the client's :data:`CONTROL_MEMBERS`, else byte for byte as it came."""
        if self.prompt is None:
            raise RequestError(f"the body has no {'messages' if is_chat else 'prompt'}")
        if not body.isascii():
            # What is skipped above is not looked into, but no worker can read it if it is not text.
            try:
                body.decode()
            except UnicodeDecodeError as error:
                raise RequestError(f"the body is not UTF-8: {error}") from error
        if _has_control_members(self.fields):
            self.body = without_control_members(body)

    @property
    def prompt(self) -> Raw | None:
        """The messages or the prompt, as JSON."""
        value = self.fields.messages if self.is_chat else self.fields.prompt
        return None if isinstance(value, UnsetType) else value

    def members(self) -> dict[str, Raw]:
        """Return all members of :attr:`body` by name, each value byte for byte. Of repeated names the last counts."""
        prompt = self.prompt
        if prompt is not None and len(memoryview(prompt)) >= _LONG_PROMPT_BYTES:
            members = self._members_around(prompt)
            if members is not None:
                return members
        return _read_all(self.body)

    def _members_around(self, prompt: Raw) -> dict[str, Raw] | None:
        """Return all members without reading the prompt again, which is most of the body; None where it cannot be told
        for certain which part of the body it is."""
        body = self.body
        place = _PROMPT_NAMES[self.is_chat].search(body)
        content = memoryview(prompt)
        if place is None or not body.startswith(content, place.end()):
            return None
        members = _read_all(body[: place.end()] + b"0" + body[place.end() + len(content) :])
        name = "messages" if self.is_chat else "prompt"
        # Otherwise it was a part of another member, or one of two prompts.
        if bytes(members[name]) != b"0":
            return None
        members[name] = prompt
        return members

    def with_members(self, **members: bytes) -> bytes:
        """Return the body with these members added, none of which it has; everything else stays byte for byte."""
        # There is a prompt at least, so a comma is due.
        added = [b',"%b":%b' % (name.encode(), value) for name, value in members.items()]
        return b"".join((memoryview(self.body)[: self.body.rindex(b"}")], *added, b"}"))
