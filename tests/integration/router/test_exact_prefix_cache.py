"""With KV events the router knows an engine's prefix cache to the token."""

from __future__ import annotations

import asyncio
import random
from typing import get_args

import httpx
import pytest
from router_under_test import OPTIONS, until
from tables import table_of

from dolphin_router.contract import RouterConfig, Workers
from dolphin_router.process.router import Router
from dolphin_router.routing import ActiveTable
from dolphin_sim.emulator import emulated_worker
from dolphin_sim.emulator.options import EventEncoding


@pytest.mark.parametrize("encoding", get_args(EventEncoding))
def test_effective_lengths_are_the_engine_s_own(encoding: EventEncoding) -> None:
    generator = random.Random(1)
    shared = [generator.randrange(1000) for _ in range(700)]
    prompts = [
        shared[: generator.randrange(100, 700)] + [generator.randrange(1000) for _ in range(77)] for _ in range(12)
    ]

    async def scenario() -> None:
        async with emulated_worker(role="decode", time_scale=200.0, kv_events=encoding) as worker:
            config = RouterConfig(engine="vllm-nixl", workers=Workers(decode=(worker.router_address(),)), explain=True)
            router = Router(config, OPTIONS)
            router.plane.active = ActiveTable.from_table(table_of("local"))
            await router.start()
            await until(lambda: all(state.is_ready for state in router.fleet.workers), "the worker is ready")
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.server.port}") as client:
                    for prompt in prompts:
                        heard = router.events.counters.messages
                        answer = await client.post(
                            "/v1/completions",
                            json={"model": "emulated", "prompt": prompt, "max_tokens": 1, "ignore_eos": True},
                            headers={"x-dolphin-explain": "1"},
                        )
                        usage = answer.json()["usage"]
                        cached = usage["prompt_tokens_details"]["cached_tokens"]
                        features = [float(x) for x in answer.headers["x-dolphin-features"].split(",")]
                        assert features[0] == len(prompt) == usage["prompt_tokens"]
                        assert features[2] == len(prompt) - cached
                        await until(lambda heard=heard: router.events.counters.messages > heard, "events have come")
            finally:
                await router.stop()

    asyncio.run(scenario())
