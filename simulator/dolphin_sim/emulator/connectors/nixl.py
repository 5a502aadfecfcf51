"""vLLM's NixlConnector: the prefill worker's answer names the KV cache, the decode worker pulls it."""

from __future__ import annotations

import secrets
import time
from typing import Any

from dolphin_sim.emulator.batch import Generation
from dolphin_sim.emulator.borrower import KvSource
from dolphin_sim.emulator.call import Call, Choice
from dolphin_sim.emulator.connectors.base import Connector
from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.request_body import ChatBody, GenerationBody

_NEEDED = ("remote_engine_id", "remote_host", "remote_port")


class NixlConnector(Connector):
    """Both roles: each request says which part it plays."""

    def keeps_kv(self, call: Call) -> bool:
        """See ``Connector.keeps_kv``."""
        return call.transfer_parameters.get("do_remote_decode") is True

    def is_remote(self, call: Call) -> bool:
        """See ``Connector.is_remote``. Without blocks there is nothing to fetch, and the prompt is computed here."""
        parameters = call.transfer_parameters
        return parameters.get("do_remote_prefill") is True and bool(parameters.get("remote_block_ids"))

    async def source(self, choice: Choice) -> KvSource | None:
        """See ``Connector.source``. With ``n`` above 1 the first choice fetches for all."""
        call = choice.run.call
        if choice.index % call.body.choices:
            return None
        parameters = call.transfer_parameters
        key = parameters.get("remote_request_id") or _internal_id(choice)
        source = self._source(parameters, key)
        if source is None:
            raise KvLoadError(f"kv_transfer_params lack one of {', '.join(_NEEDED)}: {parameters}")
        choice.run.reported_cached_tokens = parameters.get(
            "remote_prefill_cached_tokens", len(call.prompts[choice.prompt_index])
        )
        return source

    def kept(self, choice: Choice) -> dict[str, Any] | None:
        """See ``Connector.kept``. A prompt shorter than a block is not handed over."""
        generation = _generation(choice)
        if generation.prompt_tokens < self.parts.options.block_tokens:
            self.parts.pacer.release_kept(generation)
            return None
        key = _internal_id(choice)
        if not self.parts.options.old_parameters:
            key += f"-{secrets.token_hex(4)}"
        lease = self.lend(key, choice)
        blocks: list[Any] = list(lease.block_ids)
        parameters = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": blocks if self.parts.options.old_parameters else [blocks],
            "remote_engine_id": self.parts.engine_id,
            "remote_host": self.parts.options.host,
            "remote_port": self.parts.side_channel.port,
            "tp_size": 1,
        }
        if self.parts.options.old_parameters:
            return parameters
        return parameters | {
            "remote_request_id": key,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": lease.tokens,
            "remote_blocks_expiry_time": time.time() + self.parts.pacer.wall_s(self.parts.options.lease_s),
            "remote_registration_generation": 0,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": generation.reused_tokens,
        }

    def abandoned(self, body: GenerationBody, request_id: str) -> KvSource | None:
        """See ``Connector.abandoned``."""
        parameters = body.kv_transfer_params or {}
        if not parameters.get("do_remote_prefill"):
            return None
        own_id = request_id if isinstance(body, ChatBody) else f"{request_id}-0"
        return self._source(parameters, parameters.get("remote_request_id") or own_id)

    def _source(self, parameters: dict[str, Any], key: str) -> KvSource | None:
        blocks = parameters.get("remote_block_ids")
        if any(parameters.get(name) in (None, "") for name in _NEEDED) or not isinstance(blocks, list):
            return None
        if blocks and isinstance(blocks[0], list):
            blocks = blocks[0]
        return KvSource(
            host=str(parameters["remote_host"]),
            port=int(parameters["remote_port"]),
            key=key,
            engine_id=str(parameters["remote_engine_id"]),
            block_ids=tuple(blocks),
            timeout_s=self.parts.options.wait_s,
        )


def _internal_id(choice: Choice) -> str:
    """Return vLLM's name for the sequence: that of the request, and for a completion the number of the prompt."""
    call = choice.run.call
    return call.request_id if call.is_chat else f"{call.request_id}-{choice.prompt_index}"


def _generation(choice: Choice) -> Generation:
    assert choice.generation is not None
    return choice.generation
