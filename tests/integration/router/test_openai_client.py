"""The official Python client, through the router, over emulated engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import get_args

import openai
import pytest
from router_under_test import OPTIONS, until
from tables import table_of

from dolphin_router.contract import ActionName, EngineName, RouterConfig, Split, Workers
from dolphin_router.process.router import Router
from dolphin_router.routing import ActiveTable
from dolphin_sim.emulator import WorkerOptions, emulated_cluster, expected_chat_text, expected_text
from dolphin_sim.emulator.cluster import EmulatedCluster
from dolphin_sim.emulator.options import EngineName as EmulatedEngineName

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue? " * 20}]
ENGINES = get_args(EngineName)

Scenario = Callable[[openai.AsyncOpenAI, Router, EmulatedCluster], Awaitable[None]]


@asynccontextmanager
async def routed(
    engine: EmulatedEngineName, action: ActionName
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Router, EmulatedCluster]]:
    options = WorkerOptions(engine=engine, time_scale=100.0, kv_lease_s=5000.0)
    aggregated = 1 if engine == "sglang" else 0
    async with emulated_cluster(Split(prefill=2, decode=2), options, aggregated=aggregated) as cluster:
        config = RouterConfig(
            engine=engine,
            workers=Workers(
                prefill=tuple(worker.router_address() for worker in cluster.prefill),
                decode=tuple(worker.router_address() for worker in cluster.decode),
                aggregated=tuple(worker.router_address() for worker in cluster.aggregated),
            ),
            notice_endpoint=cluster.notice_endpoint,
        )
        router = Router(config, OPTIONS)
        router.plane.active = ActiveTable.from_table(table_of(action))
        await router.start()
        await until(lambda: all(state.is_ready for state in router.fleet.workers), "the workers are ready")
        try:
            async with openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{router.server.port}/v1", api_key="key", max_retries=0
            ) as client:
                yield client, router, cluster
        finally:
            await router.stop()


def run(engine: EmulatedEngineName, action: ActionName, scenario: Scenario) -> None:
    async def main() -> None:
        async with routed(engine, action) as (client, router, cluster):
            await scenario(client, router, cluster)
            workers = [*cluster.prefill, *cluster.decode, *cluster.aggregated]
            for worker in workers:
                await worker.wait_until(lambda worker=worker: worker.is_idle and not worker.ledger.open)
                assert not worker.ledger.errors
                assert not worker.ledger.expired
            legs = sum(len([r for r in w.requests if r.method == "POST"]) for w in cluster.prefill)
            assert (legs > 0) == (action == "remote")

    asyncio.run(main())


@pytest.mark.parametrize("action", get_args(ActionName))
@pytest.mark.parametrize("engine", ENGINES)
def test_chat_and_text_whole_and_streamed(engine: EmulatedEngineName, action: ActionName) -> None:
    async def scenario(client: openai.AsyncOpenAI, router: Router, cluster: EmulatedCluster) -> None:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["emulated"]

        chat = await client.chat.completions.create(model="emulated", messages=MESSAGES, max_tokens=12)
        assert chat.choices[0].message.content == expected_chat_text(MESSAGES, 12)
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 12

        stream = await client.chat.completions.create(
            model="emulated", messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True}
        )
        pieces, usage = [], None
        async for chunk in stream:
            usage = chunk.usage or usage
            pieces.extend(choice.delta.content or "" for choice in chunk.choices)
        assert "".join(pieces) == expected_chat_text(MESSAGES, 12)
        assert usage is not None
        assert usage.prompt_tokens == chat.usage.prompt_tokens

        text = await client.completions.create(model="emulated", prompt="Once upon a time " * 30, max_tokens=9)
        assert text.choices[0].text == expected_text("Once upon a time " * 30, 9)
        # ATOM takes prompts as text alone.
        prompt: str | list[int] = "Three ships " * 30 if engine == "atom" else list(range(100, 400))
        parts = await client.completions.create(model="emulated", prompt=prompt, max_tokens=9, stream=True)
        # Some engines send usage unasked, in an event without choices.
        assert "".join([choice.text async for part in parts for choice in part.choices]) == expected_text(prompt, 9)

    run(engine, action, scenario)


@pytest.mark.parametrize("action", get_args(ActionName))
def test_several_choices_log_probabilities_and_tools(action: ActionName) -> None:
    async def scenario(client: openai.AsyncOpenAI, router: Router, cluster: EmulatedCluster) -> None:
        several = await client.chat.completions.create(
            model="emulated", messages=MESSAGES, max_tokens=8, n=3, temperature=0.7, logprobs=True, top_logprobs=2
        )
        assert len(several.choices) == 3
        assert all(choice.logprobs is not None and choice.logprobs.content for choice in several.choices)
        tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
        called = await client.chat.completions.create(
            model="emulated", messages=MESSAGES, max_tokens=64, tools=[tool], tool_choice="required"
        )
        calls = called.choices[0].message.tool_calls
        assert calls
        batch = await client.completions.create(model="emulated", prompt=["one " * 40, "two " * 40], max_tokens=5)
        assert [choice.text for choice in batch.choices] == [
            expected_text("one " * 40, 5),
            expected_text("two " * 40, 5),
        ]

    run("vllm-nixl", action, scenario)


def test_an_engine_error_reaches_the_client_as_its_own() -> None:
    async def scenario(client: openai.AsyncOpenAI, router: Router, cluster: EmulatedCluster) -> None:
        await client.completions.create(model="emulated", prompt="x" * 400, max_tokens=2)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="another", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await client.chat.completions.create(model="emulated", messages=MESSAGES, max_tokens=-1)

    run("vllm-nixl", "remote", scenario)
