"""A prefill and a decode worker in one process that compute nothing: they answer at once, or a chunk every so often.

    python benchmarks/router/stub_engine.py [--prefill-port N] [--decode-port N] [--chunk-interval-ms N] [--core N]

Prints one line of JSON with both ports when they listen. Speaks enough of vLLM's protocol with NIXL, and of SGLang's
(both legs at once), for routers to start and to do all their work. ``GET /stub/counters`` tells what was asked for, so
that a benchmark can prove that every answer took both legs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, cast

import httptools
import uvloop

STREAM_CHUNKS: Final = 64
STREAM_EVENTS: Final = STREAM_CHUNKS + 2
"""The chunks, usage and ``[DONE]``."""
MODEL: Final = "stub"
COMPLETIONS: Final = b"/v1/chat/completions"
PROMPT_TOKENS: Final = 50

TRANSFER_PARAMETERS: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3, 4]],
    "remote_engine_id": "stub-prefill",
    "remote_request_id": "chatcmpl-stub",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
"""A prefill worker's, in the shape of vLLM's NixlConnector."""

MEMBERS_WITHIN_BYTES: Final = 2048
"""Of either end of a body: all members but the prompt. To search long prompts would cost more than all the rest."""

Role = Literal["prefill", "decode"]


@dataclass
class Counters:
    """What the workers were asked for. A leg is plain when nothing ties it to a leg on the other worker."""

    prefill: int = 0
    decode: int = 0
    plain_prefill: int = 0
    plain_decode: int = 0
    aborted: int = 0
    """Streams whose reader left."""
    refused: int = 0
    """Completion requests with a path that is not served."""


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _whole(body: bytes, *, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def _usage(completion_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


def completion(*, transfer_parameters: object = None) -> bytes:
    """Return an answer that is not a stream."""
    choice = {"index": 0, "message": {"role": "assistant", "content": " token"}, "finish_reason": "length"}
    return _compact(
        {
            "id": "chatcmpl-stub",
            "object": "chat.completion",
            "created": 1700000000,
            "model": MODEL,
            "choices": [choice],
            "usage": _usage(1),
            "kv_transfer_params": transfer_parameters,
        }
    )


def stream_events(chunks: int) -> list[bytes]:
    """Return the events of a stream, the last of them ``[DONE]``."""

    def event(choices: object, usage: object) -> bytes:
        kind = "chat.completion.chunk"
        head = {"id": "chatcmpl-stub", "object": kind, "created": 1700000000, "model": MODEL}
        return b"data: %b\n\n" % _compact({**head, "choices": choices, "usage": usage})

    def choice(number: int) -> dict[str, object]:
        end = "length" if number == chunks - 1 else None
        return {"index": 0, "delta": {"content": f" token{number}"}, "logprobs": None, "finish_reason": end}

    return [*(event([choice(n)], None) for n in range(chunks)), event([], _usage(chunks)), b"data: [DONE]\n\n"]


STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END: Final = b"0\r\n\r\n"


def _framed(events: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


FULL_STREAM: Final = _framed(stream_events(STREAM_CHUNKS))
SHORT_STREAM: Final = _framed(stream_events(1))
"""What SGLang's prefill worker streams: it stops after one token by itself."""
PREFILLED: Final = _whole(completion(transfer_parameters=TRANSFER_PARAMETERS))
COMPLETED: Final = _whole(completion())
NOT_FOUND: Final = _whole(b'{"error":{"message":"no such path","code":404}}', status=b"404 Not Found")

_MODEL_FACTS: Final = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "tokenizer_path": MODEL,
    "max_model_len": 131072,
}
FACTS: Final = {
    b"/health": b"",
    b"/ping": b"",
    b"/v1/models": _compact(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "stub", "max_model_len": 131072}]}
    ),
    b"/version": _compact({"version": "0.33.0"}),
    b"/load": _compact({"server_load": 0}),
    **{
        path: _compact({**_MODEL_FACTS, "is_generation": True, "version": "0.5.23", "dp_size": 1, "tp_size": 1})
        for path in (b"/get_server_info", b"/server_info", b"/get_model_info", b"/model_info")
    },
}
"""What routers ask workers for at their start."""


def _holds(body: bytes, member: bytes) -> bool:
    """Whether the body has this member with the value true, in either of the usual spacings."""
    return b'"%b":true' % member in body or b'"%b": true' % member in body


class WorkerConnection(asyncio.Protocol):
    """One connection to one of the two workers."""

    def __init__(self, role: Role, counters: Counters, *, chunk_interval_s: float) -> None:
        self._role = role
        self._counters = counters
        self._chunk_interval_s = chunk_interval_s
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._pieces: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    # Protocol interface

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Without a buffer every write is a system call of its own, as that of an engine which sends token by token.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.close()  # such as an offer of HTTP/2

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._counters.aborted += 1

    # Parser callbacks

    def on_url(self, url: bytes) -> None:
        self._path = url.partition(b"?")[0]
        self._pieces.clear()

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self._path == COMPLETIONS:
            self._complete(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
        elif self._path == b"/stub/counters":
            self._transport.write(_whole(_compact(asdict(self._counters))))
        else:
            self._counters.refused += self._parser.get_method() == b"POST"
            facts = FACTS.get(self._path)
            self._transport.write(NOT_FOUND if facts is None else _whole(facts))
        if not self._parser.should_keep_alive() and self._timer is None:
            self._transport.close()

    # Answers

    def _complete(self, body: bytes) -> None:
        if len(body) > 2 * MEMBERS_WITHIN_BYTES:
            body = body[:MEMBERS_WITHIN_BYTES] + body[-MEMBERS_WITHIN_BYTES:]
        streams = _holds(body, b"stream")
        concurrent_legs = b'"bootstrap_room"' in body
        if self._role == "prefill":
            self._counters.prefill += 1
            if _holds(body, b"do_remote_decode"):
                self._transport.write(PREFILLED)
                return
            self._counters.plain_prefill += not concurrent_legs
            events = SHORT_STREAM
        else:
            self._counters.decode += 1
            remote = _holds(body, b"do_remote_prefill") and b'"stub-prefill"' in body
            self._counters.plain_decode += not (remote or concurrent_legs)
            events = FULL_STREAM
        if not streams:
            self._transport.write(COMPLETED)
        elif self._chunk_interval_s:
            self._transport.write(STREAM_HEAD)
            self._write_paced(events, 0, asyncio.get_running_loop().time())
        else:
            write = self._transport.write
            write(STREAM_HEAD)
            for event in events:
                write(event)
            write(STREAM_END)

    def _write_paced(self, events: Sequence[bytes], place: int, began_s: float) -> None:
        """Write one event, or after the last chunk all that is left, and come back for the next."""
        self._timer = None
        if place < len(events) - 2:
            self._transport.write(events[place])
            loop, place = asyncio.get_running_loop(), place + 1
            at_s = began_s + place * self._chunk_interval_s
            self._timer = loop.call_at(at_s, self._write_paced, events, place, began_s)
            return
        for event in (*events[place:], STREAM_END):
            self._transport.write(event)
        if not self._parser.should_keep_alive():
            self._transport.close()


async def serve(prefill_port: int, decode_port: int, *, chunk_interval_s: float) -> None:
    """Serve both workers until cancelled."""
    loop, counters = asyncio.get_running_loop(), Counters()

    async def listen(role: Role, port: int) -> asyncio.Server:
        def connection() -> WorkerConnection:
            return WorkerConnection(role, counters, chunk_interval_s=chunk_interval_s)

        return await loop.create_server(connection, "127.0.0.1", port, backlog=4096)

    servers = {"prefill": await listen("prefill", prefill_port), "decode": await listen("decode", decode_port)}
    ports = {f"{role}_port": server.sockets[0].getsockname()[1] for role, server in servers.items()}
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers.values()))


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prefill-port", type=int, default=0, help="a free one unless given")
    parser.add_argument("--decode-port", type=int, default=0, help="a free one unless given")
    parser.add_argument("--chunk-interval-ms", type=float, default=0.0, help="between chunks; all at once unless given")
    parser.add_argument("--core", type=int, help="run on this core alone")
    arguments = parser.parse_args(argv)
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    gc.disable()  # nothing here makes cycles while it serves, and a collection would disturb the measurement
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(
            serve(arguments.prefill_port, arguments.decode_port, chunk_interval_s=arguments.chunk_interval_ms / 1e3)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
