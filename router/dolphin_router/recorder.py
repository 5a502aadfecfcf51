"""The latest requests without their text: what a search learns from.

Prompts are told apart by keyed digests of their leading blocks, so that a search sees which prompts begin alike, and
nobody without the policy's secret can test a guess. All routers of a policy share the secret, hence the digests.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Final

import msgspec

from .contract.recorded_request import RECORDED_FORMAT
from .messages.recorded import RecordedHead, RecordedRow
from .prefix_index.block_keys import (
    BLOCK_BYTES,
    COARSE_BLOCK_BYTES,
    COARSE_BLOCKS,
    FINE_BLOCKS,
    LONG_BLOCK_BYTES,
    next_key,
)
from .request_latency import latency_of
from .request_record import RequestRecord

RECORDED_BLOCK_BYTES: Final = COARSE_BLOCK_BYTES
"""About 450 to 512 tokens of English text."""
MOST_RING_BYTES: Final = 16_777_216
"""Some 30,000 requests of a few thousand tokens."""
MOST_BLOCKS: Final = 1024
"""Of one request: what is beyond 2 MiB is not told apart."""
HASHED_BYTES_PER_S: Final = 8_388_608
"""At 4 to 5 µs for a block, about 2 % of a core at most. Blocks that were seen before are not hashed again."""
MOST_KNOWN_DIGESTS: Final = 32_768
"""Blocks of the prefix index whose digests are remembered, at 170 to 220 bytes each."""

_DIGEST_BYTES = 8
_DIGITS = 2 * _DIGEST_BYTES
_FINE_KEYS = COARSE_BLOCK_BYTES // BLOCK_BYTES
_LONG_PLACE = FINE_BLOCKS + COARSE_BLOCKS
_DIGESTS_OF_LONG = LONG_BLOCK_BYTES // RECORDED_BLOCK_BYTES
_LINES_A_PIECE = 256
_LONGEST_NAME = 253


_encode = msgspec.json.Encoder().encode


class Recorder:
    """A ring of the latest requests, bounded in bytes."""

    def __init__(self, *, secret: bytes, most_bytes: int = MOST_RING_BYTES) -> None:
        """Start empty.

        Args:
            secret: the policy's, 1 to 64 bytes.
            most_bytes: what the rows may take. Beside them are the remembered digests.

        Raises:
            ValueError: there is no secret, or it is too long.
        """
        if not 1 <= len(secret) <= 64:
            raise ValueError(f"the recorder's secret has {len(secret)} bytes; give one of 1 to 64")
        self._digests = BlockDigests(secret)
        self._secret_id = hashlib.blake2b(b"secret id", digest_size=_DIGEST_BYTES, key=secret).hexdigest()
        self._lines: deque[bytes] = deque()
        self._most_bytes = most_bytes
        self.held_bytes = 0
        """Of the rows."""
        self.dropped = 0
        """Rows that had to make room for others."""

    def __len__(self) -> int:
        return len(self._lines)

    def finished(self, record: RequestRecord, prompt: bytes | memoryview) -> None:
        """Keep what is worth keeping of a request that has ended.

        Args:
            record: what is known of it.
            prompt: its prompt's or its messages' JSON, empty if there is none. Nothing of it is kept.
        """
        inputs = record.output_inputs
        if inputs is None or record.outcome is None or record.finished_s is None:
            return
        latency = latency_of(record)
        features, decision = record.features, record.decision
        counted = record.usage_prompt_tokens
        blocks = self._digests.of(record.prompt_seed, prompt, record.prompt_keys, now_s=record.finished_s)
        line = _encode(
            RecordedRow(
                int(record.arrived_unix_s * 1e6 + 0.5) / 1e6,
                _plain(record.model),
                record.path.endswith("/chat/completions"),
                len(prompt),
                inputs.prompt_tokens if counted is None else counted,
                counted is not None,
                record.generated_tokens,
                blocks,
                inputs.max_tokens,
                inputs.turns,
                inputs.has_tools,
                inputs.json_response,
                inputs.system_prompt_bucket,
                None if features is None else features.prefill_effective_tokens,
                None if features is None else features.decode_effective_tokens,
                None if features is None else features.output_tokens,
                None if decision is None else decision.cluster,
                None if decision is None else decision.action.text,
                record.action_taken,
                record.reason,
                "" if record.table_digest is None else record.table_digest.removeprefix("sha256:")[:12],
                record.streamed,
                _rounded(latency.ttft_ms),
                _rounded(latency.tpot_ms),
                _rounded(latency.duration_ms),
                record.status,
                record.outcome,
                record.retries,
            )
        )
        lines = self._lines
        lines.append(line)
        self.held_bytes += getsizeof(line)
        while self.held_bytes > self._most_bytes:
            self.held_bytes -= getsizeof(lines.popleft())
            self.dropped += 1

    def lines(self) -> Iterator[bytes]:
        """Return all rows as they are at this moment, behind a header, as JSON lines in pieces of some hundred.

        Rows are in the order in which requests ended. Between two pieces the caller may do other work.
        """
        header = RecordedHead(RECORDED_FORMAT, RECORDED_BLOCK_BYTES, self._secret_id, self.dropped)
        return _pieces(_encode(header), tuple(self._lines))


class BlockDigests:
    """Keyed, chained digests of prompts' leading blocks, 16 hexadecimal digits each."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        # By the block's key in the prefix index, which costs far less than a digest. Two generations stand in for an
        # order of use: what was not used while the younger filled up goes.
        self._young: dict[int, str] = {}
        self._old: dict[int, str] = {}
        self._allowance = float(HASHED_BYTES_PER_S)
        self._allowance_at_s = 0.0

    def of(self, seed: bytes, prompt: bytes | memoryview, keys: Sequence[int], *, now_s: float) -> str:
        """Return the digests of the prompt's whole blocks, as many as the allowance of bytes to hash lets through.

        Args:
            seed: what else the prompt's tokens depend on.
            prompt: its JSON.
            keys: of the prompt's blocks in the prefix index; empty where there is no index.
            now_s: the event loop's time.
        """
        count = min(len(prompt) // RECORDED_BLOCK_BYTES, MOST_BLOCKS)
        if not count:
            return ""
        pieces: list[str] = []
        start = 0
        for key, blocks in _recorded_keys(keys, prompt, count):
            piece = None if key is None else self._known(key)
            if piece is None:
                previous = pieces[-1][-_DIGITS:] if pieces else self._seed_digest(seed)
                piece = self._hashed(previous, prompt, start, blocks, now_s)
                if len(piece) < blocks * _DIGITS:
                    pieces.append(piece)
                    break
                if key is not None:
                    self._remember(key, piece)
            pieces.append(piece)
            start += blocks * RECORDED_BLOCK_BYTES
        return "".join(pieces)

    def _hashed(self, previous: str, prompt: bytes | memoryview, start: int, blocks: int, now_s: float) -> str:
        """Return the digests of some blocks, or of as many as the allowance lets through."""
        digests = ""
        for _ in range(blocks):
            if not self._may_hash(now_s):
                break
            previous = self._digest(previous.encode() + bytes(prompt[start : start + RECORDED_BLOCK_BYTES]))
            digests += previous
            start += RECORDED_BLOCK_BYTES
        return digests

    def _digest(self, content: bytes) -> str:
        return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=self._secret).hexdigest()

    def _seed_digest(self, seed: bytes) -> str:
        key = hash((b"seed", seed))
        digest = self._known(key)
        if digest is None:
            digest = self._digest(seed)
            self._remember(key, digest)
        return digest

    def _known(self, key: int) -> str | None:
        digest = self._young.get(key)
        if digest is None:
            digest = self._old.get(key)
            if digest is not None:
                self._remember(key, digest)
        return digest

    def _remember(self, key: int, digest: str) -> None:
        if len(self._young) >= MOST_KNOWN_DIGESTS // 2:
            self._old, self._young = self._young, {}
        self._young[key] = digest

    def _may_hash(self, now_s: float) -> bool:
        """Take one block from the allowance, which a second fills."""
        if now_s > self._allowance_at_s:
            grown = self._allowance + (now_s - self._allowance_at_s) * HASHED_BYTES_PER_S
            self._allowance = min(grown, float(HASHED_BYTES_PER_S))
            self._allowance_at_s = now_s
        if self._allowance < RECORDED_BLOCK_BYTES:
            return False
        self._allowance -= RECORDED_BLOCK_BYTES
        return True


def _recorded_keys(keys: Sequence[int], prompt: bytes | memoryview, count: int) -> list[tuple[int | None, int]]:
    """Return what ``count`` recorded blocks can be known by, and how many each key stands for.

    The first blocks of the index are shorter than recorded ones, the last ones longer. What is left at the end gets
    keys of its own, and none where there is no index.
    """
    recorded: list[tuple[int | None, int]] = [(key, 1) for key in keys[_FINE_KEYS - 1 : FINE_BLOCKS : _FINE_KEYS]]
    recorded += [(key, 1) for key in keys[FINE_BLOCKS:_LONG_PLACE]]
    long_keys = keys[_LONG_PLACE : _LONG_PLACE + (count - len(recorded)) // _DIGESTS_OF_LONG]
    left = count - len(recorded) - _DIGESTS_OF_LONG * len(long_keys)
    recorded += [(key, _DIGESTS_OF_LONG) for key in long_keys]
    last = recorded[-1][0] if recorded else None
    for start in range((count - left) * RECORDED_BLOCK_BYTES, count * RECORDED_BLOCK_BYTES, RECORDED_BLOCK_BYTES):
        last = None if last is None else next_key(last, prompt[start : start + RECORDED_BLOCK_BYTES])
        recorded.append((last, 1))
    return recorded


def _pieces(header: bytes, lines: tuple[bytes, ...]) -> Iterator[bytes]:
    yield header + b"\n"
    for start in range(0, len(lines), _LINES_A_PIECE):
        yield b"\n".join(lines[start : start + _LINES_A_PIECE]) + b"\n"


def _rounded(milliseconds: float | None) -> float | None:
    # `round` takes four times as long.
    return None if milliseconds is None else int(milliseconds * 1e3 + 0.5) / 1e3


def _plain(name: str) -> str:
    """Return a name that a client made up, fit to be written and shown."""
    if not name.isprintable():
        name = "".join(character if character.isprintable() else "?" for character in name)
    return name[:_LONGEST_NAME]
