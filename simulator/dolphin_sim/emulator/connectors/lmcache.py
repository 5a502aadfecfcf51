"""vLLM with LMCache: the prefill worker pushes the KV cache to the decode worker and then notifies the router.

The form in which the decode worker samples the first token: its leg is the client's request, and it finds what was
pushed by the prompt's tokens. Our own line protocol stands for the push; the notice is LMCache's: msgpack of
``{"type": "ProxyNotif", "req_id": …}`` over a ZeroMQ PUSH socket, one for each receiving rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from dolphin_sim.emulator.answers import prompt_digest
from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice
from dolphin_sim.emulator.connectors.base import Connector, Parts
from dolphin_sim.emulator.errors import ApiError, KvLoadError
from dolphin_sim.emulator.ledger import Lease

_NEEDED = ("req_id", "receiver_host", "receiver_init_port", "receiver_alloc_port")


class LmcacheConnector(Connector):
    """What was pushed stays in the decode worker's buffer until a request with its prompt takes it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._arrived: dict[bytes, deque[Lease]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._pushes: set[asyncio.Task[None]] = set()
        self._context: zmq.asyncio.Context | None = None
        self._notices: zmq.asyncio.Socket | None = None

    @property
    def receive_port(self) -> int | None:
        """Where a decode worker takes KV caches in: both its init and its alloc port."""
        return None if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """See ``Connector.start``."""
        options = self.parts.options
        if options.role == "decode":
            self._server = await asyncio.start_server(self._receive, options.host, options.receive_port)
        elif options.notice_endpoint is not None:
            self._context = zmq.asyncio.Context()
            self._notices = self._context.socket(zmq.PUSH)
            self._notices.connect(options.notice_endpoint)

    async def stop(self) -> None:
        """See ``Connector.stop``."""
        for task in self._pushes:
            task.cancel()
        for writer in self._connections:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()
        if self._context is not None:
            self._context.destroy(linger=0)

    def check(self, call: Call) -> None:
        """See ``Connector.check``."""
        destination = call.transfer_parameters.get("disagg_spec")
        if destination is not None and not (
            isinstance(destination, dict) and all(destination.get(name) for name in _NEEDED)
        ):
            raise ApiError(400, f"disagg_spec must have {', '.join(_NEEDED)}: {destination}")

    def keeps_kv(self, call: Call) -> bool:
        """See ``Connector.keeps_kv``."""
        return bool(call.transfer_parameters.get("disagg_spec"))

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.kept``."""
        task = asyncio.create_task(self._push(choice))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)
        return None

    def is_remote(self, call: Call) -> bool:
        """See ``Connector.is_remote``."""
        return bool(self._arrived) and any(prompt_digest(prompt) in self._arrived for prompt in call.prompts)

    async def source(self, choice: Choice) -> KvSource | None:
        """See ``Connector.source``. With ``n`` above 1 the first choice takes it for all."""
        waiting = self._arrived.get(choice.digest)
        if not waiting:
            return None
        lease = waiting.popleft()
        if not waiting:
            del self._arrived[choice.digest]
        lease.end = "pulled"
        choice.run.reported_cached_tokens = lease.tokens
        return KvSource(host="", port=0, key=lease.key, timeout_s=self.parts.options.wait_s)

    async def _push(self, choice: Choice) -> None:
        generation = choice.generation
        assert generation is not None
        destination = choice.run.call.transfer_parameters["disagg_spec"]
        profile = self.parts.options.profile
        seconds = profile.transfer_overhead_ms / 1e3 + generation.prompt_tokens * profile.kv_bytes_per_token / (
            profile.link_gb_per_s * 1e9
        ) * len(self._pushes)
        ports: list[int] = destination["receiver_init_port"]
        try:
            _, writer = await asyncio.open_connection(destination["receiver_host"], ports[0])
            await asyncio.sleep(self.parts.pacer.wall_s(seconds))
            arrived = {
                "req_id": str(destination["req_id"]),
                "digest": choice.digest.hex(),
                "tokens": generation.prompt_tokens,
            }
            writer.write(json.dumps(arrived).encode() + b"\n")
            await writer.drain()
            writer.close()
            if self._notices is not None:
                notice = msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": str(destination["req_id"])})
                for _ in ports:
                    await self._notices.send(notice)
        except OSError as error:
            self.parts.lender.note(KvLoadError(f"cannot push to {destination}: {error}"))
        finally:
            self.parts.pacer.release_kept(generation)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(OSError, ValueError):
            async for line in reader:
                arrived = json.loads(line)
                lease = self.parts.lender.hold_for(arrived["req_id"], arrived["tokens"])
                self._arrived.setdefault(bytes.fromhex(arrived["digest"]), deque()).append(lease)
        self._connections.discard(writer)
        writer.close()
