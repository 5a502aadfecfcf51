"""How emulated workers hand over KV caches: lines of JSON over TCP, from the decode to the prefill worker.

Only the time of a transfer is emulated, nothing is moved. The protocol is our own; an engine's transfer library is
never seen by a router either. One connection serves one hand-over:

==================================================== =================================================================
decode worker                                        prefill worker
==================================================== =================================================================
``{"claim": key, "engine_id", "block_ids", …}``      ``{"granted": tokens}`` or ``{"error": message}``
``{"start": true}``: the transfer begins             ``{"sharers": n}`` now and whenever n changes
``{"heartbeat": true}``: the lease is to last on
``{"end": "pulled"}`` or ``{"end": "aborted"}``      closes the connection
==================================================== =================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.lender import Lender

_LONGEST_LINE_BYTES = 16 << 20


class SideChannel:
    """The prefill worker's end."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._sending: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int = 0) -> None:
        """Listen; port 0 takes any free one."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_LINE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections."""
        if self._server is None:
            return
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), timeout=1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        key = ""
        try:
            async for line in reader:
                message = json.loads(line)
                if "claim" in message:
                    claimed = await self._claim(message, reader, writer)
                    if not claimed:
                        break
                    key = message["claim"]
                elif "start" in message:
                    self._sending.add(writer)
                    self._tell_sharers()
                elif "heartbeat" in message:
                    self._lender.renew(key)
                elif "end" in message:
                    self._lender.end(key or message["key"], message["end"])
                    break
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # A decode worker that vanishes leaves its lease to expire.
            pass
        finally:
            self._connections.discard(writer)
            if writer in self._sending:
                self._sending.discard(writer)
                self._tell_sharers()
            writer.close()

    async def _claim(self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        key = message["claim"]
        if message["wait"]:
            await self._lender.available(key)
            if reader.at_eof() or writer.transport.is_closing():
                return False
        try:
            lease = self._lender.claim(
                key,
                engine_id=message["engine_id"],
                block_ids=message["block_ids"],
                prompt_digest=bytes.fromhex(message["digest"]),
            )
        except KvLoadError as error:
            _send(writer, error=str(error), is_mistake=error.is_mistake)
            return False
        self._lender.renew(key)
        _send(writer, granted=lease.tokens, lease_s=self._lender.lease_s, age_s=self._lender.age_s(lease))
        return True

    def _tell_sharers(self) -> None:
        for writer in self._sending:
            _send(writer, sharers=len(self._sending))


def _send(writer: asyncio.StreamWriter, **message: object) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
