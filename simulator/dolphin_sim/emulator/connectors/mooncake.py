"""vLLM's MooncakeConnector: both legs at once, which know each other by a transfer id of the router's."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice
from dolphin_sim.emulator.connection import HttpListener
from dolphin_sim.emulator.connectors.base import Connector, Parts
from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.faults import Faults
from dolphin_sim.emulator.http_call import http_call

_NEEDED = ("transfer_id", "remote_bootstrap_addr", "remote_engine_id")


class MooncakeConnector(Connector):
    """A KV cache that nobody fetches is kept for 480 s, even when the client has left the decode worker."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        options = parts.options
        self._bootstrap: HttpListener | None = None
        if options.role == "prefill":
            application = Starlette(routes=[Route("/query", self._query)])
            self._bootstrap = HttpListener(application, Faults(), host=options.host, port=options.bootstrap_port)

    @property
    def bootstrap_port(self) -> int | None:
        """See ``Connector.bootstrap_port``."""
        return None if self._bootstrap is None else self._bootstrap.port

    async def start(self) -> None:
        """See ``Connector.start``."""
        if self._bootstrap is not None:
            await self._bootstrap.open()

    async def stop(self) -> None:
        """See ``Connector.stop``."""
        if self._bootstrap is not None:
            await self._bootstrap.close()

    def keeps_kv(self, call: Call) -> bool:
        """See ``Connector.keeps_kv``."""
        parameters = call.transfer_parameters
        return parameters.get("do_remote_decode") is True and bool(parameters.get("transfer_id"))

    def is_remote(self, call: Call) -> bool:
        """See ``Connector.is_remote``."""
        return call.transfer_parameters.get("do_remote_prefill") is True

    async def source(self, choice: Choice) -> KvSource | None:
        """See ``Connector.source``. With ``n`` above 1 the first choice fetches for all."""
        call = choice.run.call
        if choice.index % call.body.choices:
            return None
        parameters = call.transfer_parameters
        if not all(isinstance(parameters.get(name), str) for name in _NEEDED):
            raise KvLoadError(f"kv_transfer_params lack one of {', '.join(_NEEDED)}: {parameters}")
        choice.run.reported_cached_tokens = len(call.prompts[choice.prompt_index])
        return KvSource(
            host=urlsplit(parameters["remote_bootstrap_addr"]).hostname or "",
            port=await _side_channel_port(parameters["remote_bootstrap_addr"], parameters["remote_engine_id"]),
            key=parameters["transfer_id"],
            engine_id=parameters["remote_engine_id"],
            waits_for_prefill=True,
            timeout_s=self.parts.options.wait_s,
        )

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.kept``."""
        self.lend(str(choice.run.call.transfer_parameters["transfer_id"]), choice)
        return None

    async def _query(self, request: Request) -> Response:
        address = f"tcp://{self.parts.options.host}:{self.parts.side_channel.port}"
        return JSONResponse({"0": {"engine_id": self.parts.engine_id, "worker_addr": {"0": {"0": address}}}})


async def _side_channel_port(bootstrap_url: str, engine_id: str) -> int:
    where = urlsplit(bootstrap_url)
    try:
        answer = await http_call(where.hostname or "", where.port or 0, "/query")
    except (OSError, ValueError) as error:
        raise KvLoadError(f"bootstrap server {bootstrap_url}: {error}") from error
    ranks: dict[str, Any] = answer.document()
    for rank in ranks.values():
        if rank["engine_id"] == engine_id:
            return int(rank["worker_addr"]["0"]["0"].rsplit(":", 1)[1])
    raise KvLoadError(f"bootstrap server {bootstrap_url} knows no engine {engine_id}")
