"""SGLang: both legs at once, which meet in a room of the prefill worker's bootstrap server."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice, Run
from dolphin_sim.emulator.connectors.base import Connector
from dolphin_sim.emulator.errors import ApiError, KvLoadError
from dolphin_sim.emulator.request_body import GenerationBody, read_json

_HEADERS = {
    "bootstrap_host": "x-override-bootstrap-host",
    "bootstrap_port": "x-override-bootstrap-port",
    "bootstrap_room": "x-override-bootstrap-room",
}


class SglangConnector(Connector):
    """The role of the worker, not the request, decides: a prefill worker stops after a token and answers once its KV
    cache was fetched; a decode worker cannot prefill and waits for a prefill that may never come."""

    @property
    def bootstrap_port(self) -> int | None:
        """See ``Connector.bootstrap_port``."""
        return self.parts.side_channel.port if self._is("prefill") else None

    def check(self, call: Call) -> None:
        """See ``Connector.check``."""
        if self._is("aggregated"):
            return
        rooms = _values(call, "bootstrap_room")
        if rooms is None:
            rid = call.body.rid or call.request_id
            raise ApiError(400, f"Disaggregated request received without bootstrap room id. request.rid={rid}")
        if isinstance(rooms, list) and len(rooms) < len(call.prompts):
            raise ApiError(400, f"bootstrap_room has {len(rooms)} entries for {len(call.prompts)} prompts")

    def most_tokens(self, call: Call) -> int | None:
        """See ``Connector.most_tokens``."""
        return 1 if self._is("prefill") else None

    def keeps_kv(self, call: Call) -> bool:
        """See ``Connector.keeps_kv``."""
        return self._is("prefill")

    def is_remote(self, call: Call) -> bool:
        """See ``Connector.is_remote``."""
        return self._is("decode")

    async def source(self, choice: Choice) -> KvSource | None:
        """See ``Connector.source``."""
        host = _entry(choice, "bootstrap_host")
        if not host:
            raise KvLoadError("the request has no bootstrap_host")
        return KvSource(
            host=str(host).strip("[]"),
            port=int(_entry(choice, "bootstrap_port") or 0),
            key=_key(choice),
            waits_for_prefill=True,
            timeout_s=self.parts.options.wait_s,
        )

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.kept``."""
        self.lend(_key(choice), choice)
        return None

    async def settled(self, run: Run) -> None:
        """See ``Connector.settled``: a prefill worker answers when the decode worker has the KV cache."""
        if self._is("prefill"):
            for choice in run.choices:
                await self.parts.lender.ended(_key(choice))

    def aborted(self, run: Run) -> None:
        """See ``Connector.aborted``: the KV cache goes with the request."""
        if self._is("prefill"):
            for choice in run.choices:
                self.parts.lender.end(_key(choice), "aborted")

    def routes(self) -> list[Route]:
        """See ``Connector.routes``."""
        return [
            Route("/abort_request", self._abort_request, methods=["POST"]),
            Route("/health_generate", self._nothing),
            Route("/ready", self._nothing),
            Route("/model_info", self._model_info),
            Route("/server_info", self._server_info),
        ]

    def _is(self, role: str) -> bool:
        return self.parts.options.role == role

    async def _abort_request(self, request: Request) -> Response:
        rid = read_json(await request.body()).get("rid")
        for run in list(self.parts.runs):
            if rid and run.call.body.rid == rid:
                run.failure = KvLoadError("aborted")
                run.changed.set()
        return Response()

    async def _nothing(self, request: Request) -> Response:
        return Response()

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse({"model_path": self.parts.options.model, "is_generation": True})

    async def _server_info(self, request: Request) -> Response:
        options = self.parts.options
        mode = "null" if options.role == "aggregated" else options.role
        return JSONResponse({"served_model_name": options.model, "disaggregation_mode": mode, "dp_size": 1})


def _values(call: Call, name: str) -> Any:
    """A header goes before the body's member."""
    return call.headers.get(_HEADERS[name], getattr(call.body, name))


def _entry(choice: Choice, name: str) -> Any:
    """Entry i of a list is for prompt i; one room for several prompts counts up."""
    values = _values(choice.run.call, name)
    if isinstance(values, list):
        return values[choice.prompt_index] if choice.prompt_index < len(values) else None
    if name == "bootstrap_room":
        return int(values) + choice.prompt_index
    return values


def _key(choice: Choice) -> str:
    number = choice.index % _choices(choice.run.call.body)
    room = _entry(choice, "bootstrap_room")
    return f"room {room}" if number == 0 else f"room {room} choice {number}"


def _choices(body: GenerationBody) -> int:
    return body.choices
