"""llm-d's sidecar before a decode worker: a header names the prefill worker, and the sidecar sends the legs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from dolphin_sim.emulator.call import Call
from dolphin_sim.emulator.connectors.nixl import NixlConnector
from dolphin_sim.emulator.errors import ApiError, KvLoadError
from dolphin_sim.emulator.http_call import HttpAnswer, http_call

PREFILLER_HEADER = "x-prefiller-host-port"
_FORWARDED = ("authorization", "x-request-id", "traceparent", "tracestate", "content-type")
_ASK_FOR_TRANSFER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class PrefillerAnswered(ApiError):
    """The prefill worker refused; its answer goes to the client as it is."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status, "the prefill worker refused")
        self._answer = answer

    def response(self, headers: Any = None) -> Response:
        """See ``ApiError.response``."""
        answer = self._answer
        return Response(answer.body, status_code=answer.status, media_type=answer.content_type)


class SidecarConnector(NixlConnector):
    """Connector ``nixlv2``: serial legs."""

    def has_preparation(self, call: Call) -> bool:
        """See ``Connector.has_preparation``."""
        return PREFILLER_HEADER in call.headers

    async def prepare(self, call: Call) -> Call:
        """See ``Connector.prepare``."""
        host, _, port = call.headers[PREFILLER_HEADER].rpartition(":")
        content: dict[str, Any] = json.loads(call.content)
        content.pop("stream_options", None)
        content |= {"stream": False, "max_tokens": 1, "kv_transfer_params": _ASK_FOR_TRANSFER}
        if "max_completion_tokens" in content:
            content["max_completion_tokens"] = 1
        if "min_tokens" in content:
            content["min_tokens"] = 1
        headers = {name: call.headers[name] for name in _FORWARDED if name in call.headers}
        path = "/v1/chat/completions" if call.is_chat else "/v1/completions"
        try:
            answer = await http_call(
                host.strip("[]"), int(port), path, headers=headers, body=json.dumps(content).encode()
            )
            parameters = answer.document().get("kv_transfer_params") if answer.status == 200 else None
        except (OSError, ValueError, KvLoadError) as error:
            raise ApiError(502, f"prefill worker {host}:{port}: {error}") from error
        if answer.status != 200:
            raise PrefillerAnswered(answer)
        return replace(call, body=call.body.model_copy(update={"kv_transfer_params": parameters}))
