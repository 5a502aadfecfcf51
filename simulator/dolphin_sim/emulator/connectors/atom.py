"""ROCm ATOM: serial legs as with NIXL, with parameters of its own, and no end to a lease but the transfer."""

from __future__ import annotations

import itertools
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice
from dolphin_sim.emulator.connectors.base import Connector, Parts
from dolphin_sim.emulator.errors import ApiError, KvLoadError
from dolphin_sim.emulator.request_body import CompletionBody

_NEEDED = ("transfer_id", "remote_host", "remote_handshake_port", "remote_tp_size", "remote_dp_size")


class AtomConnector(Connector):
    """A prefill worker parks every request that ends, plain and aborted ones too, until its KV cache was fetched."""

    always_sends_usage = True
    hangs_on_lost_kv = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._sequences = itertools.count(1)

    @property
    def parks_aborted(self) -> bool:  # type: ignore[override]
        """See ``Connector.parks_aborted``."""
        return self._is_prefill

    @property
    def _is_prefill(self) -> bool:
        return self.parts.options.role == "prefill"

    def check(self, call: Call) -> None:
        """See ``Connector.check``."""
        if isinstance(call.body, CompletionBody) and not isinstance(call.body.prompt, str):
            raise ApiError(400, "1 validation error: prompt: Input should be a valid string", kind="Bad Request")
        if call.body.data_parallel_rank not in (None, 0):
            raise ApiError(400, f"data_parallel_rank {call.body.data_parallel_rank} is not in 0..0")

    def keeps_kv(self, call: Call) -> bool:
        """See ``Connector.keeps_kv``."""
        return self._is_prefill

    def is_remote(self, call: Call) -> bool:
        """See ``Connector.is_remote``."""
        return not self._is_prefill and call.transfer_parameters.get("do_remote_prefill") is True

    async def source(self, choice: Choice) -> KvSource | None:
        """See ``Connector.source``."""
        parameters = choice.run.call.transfer_parameters
        missing = [name for name in _NEEDED if parameters.get(name) is None]
        if missing:
            raise KvLoadError(f"kv_transfer_params lack {', '.join(missing)}: {parameters}")
        if parameters.get("first_token_id") != choice.token_ids(0, 1)[0]:
            raise KvLoadError(f"first_token_id is not this prompt's: {parameters}")
        choice.run.reported_cached_tokens = parameters.get("prefix_cache_hit_tokens")
        return KvSource(
            host=str(parameters["remote_host"]),
            port=int(parameters["remote_handshake_port"]),
            key=f"sequence {parameters['transfer_id']}",
            block_ids=tuple(parameters.get("remote_block_ids") or ()),
            timeout_s=self.parts.options.wait_s,
        )

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.kept``."""
        sequence = next(self._sequences)
        lease = self.lend(f"sequence {sequence}", choice)
        call = choice.run.call
        if call.transfer_parameters.get("do_remote_decode") is not True or call.body.choices > 1:
            return None
        assert choice.generation is not None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(lease.block_ids),
            "remote_swa_block_ids": [],
            "remote_engine_id": "None",
            "remote_host": self.parts.options.host,
            "remote_port": self.parts.side_channel.port,
            "remote_handshake_port": self.parts.side_channel.port,
            "tp_size": 1,
            "dp_rank": 0,
            "remote_pp_size": 1,
            "local_slot_index": 0,
            "transfer_id": sequence,
            "first_token_id": choice.token_ids(0, 1)[0],
            "draft_token_ids": [],
            "prefix_cache_hit_tokens": choice.generation.reused_tokens,
        }

    def decode_parameters(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.decode_parameters``: the consumer's side fills its own in, of no use to anyone."""
        return None if self._is_prefill else {"do_remote_prefill": False, "do_remote_decode": False, "transfer_id": 0}

    def finish_reason(self, call: Call, reason: str) -> str:
        """See ``Connector.finish_reason``: whole completions have the engine's own names."""
        if call.is_chat or call.body.stream:
            return reason
        return {"length": "max_tokens", "stop": "eos"}.get(reason, reason)

    def routes(self) -> list[Route]:
        """See ``Connector.routes``."""
        return [Route("/kv_transfer_info", self._transfer_info), Route("/server_info", self._server_info)]

    async def _transfer_info(self, request: Request) -> Response:
        role = "kv_producer" if self._is_prefill else "kv_consumer"
        port = self.parts.side_channel.port
        return JSONResponse({"tp_size": 1, "dp_size": 1, "kv_role": role, "handshake_port": port})

    async def _server_info(self, request: Request) -> Response:
        model = self.parts.options.model
        return JSONResponse({"model_id": model, "served_model_name": model, "tp_size": 1, "dp_size": 1})
