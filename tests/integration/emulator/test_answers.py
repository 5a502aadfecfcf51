"""What an emulated engine answers, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import openai
import pytest

from dolphin_router.contract import Split
from dolphin_sim.emulator import EmulatedWorker, expected_chat_text, expected_text
from dolphin_sim.emulator.tokens import tokenize
from dolphin_sim.engine.state import Settings
from dolphin_sim.hardware import load_profile
from dolphin_sim.hardware.law import engine_settings

FAST = 200.0
PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune "
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
H20 = load_profile("h20x4-72b")
SETTINGS: Settings = engine_settings(H20, Split(prefill=1, decode=1), block_tokens=16)


def test_a_chat_stream_has_role_text_usage_and_end(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        usage = {"stream_options": {"include_usage": True}}
        stream = await client.stream(worker, messages=MESSAGES, max_tokens=20, ignore_eos=True, **usage)
        first, *middle, last = stream.chunks
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert stream.text() == expected_chat_text(MESSAGES, 20)
        assert [chunk["choices"][0]["finish_reason"] for chunk in middle] == [None] * (len(middle) - 1) + ["length"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 20
        assert stream.is_done
        assert {chunk["object"] for chunk in stream.chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in stream.chunks}) == 1

    with_worker(scene, time_scale=FAST)


def test_a_stream_without_usage_has_none(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        stream = await client.stream(worker, prompt=PROMPT, max_tokens=5)
        assert all(chunk["choices"] for chunk in stream.chunks)
        assert stream.text() == expected_text(PROMPT, 5)

    with_worker(scene, time_scale=FAST)


def test_batches_of_prompts_with_choices_are_numbered_prompt_by_prompt(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        prompts = [PROMPT, "x" + PROMPT]
        expected = [expected_text(prompt, 4, choice=choice) for prompt in prompts for choice in (0, 1)]
        whole = await client.complete(worker, prompt=prompts, n=2, max_tokens=4)
        assert [choice["text"] for choice in whole.json()["choices"]] == expected
        assert whole.json()["usage"]["completion_tokens"] == 16
        stream = await client.stream(worker, prompt=prompts, n=2, max_tokens=4)
        assert [stream.text(index) for index in range(4)] == expected
        numbers = await client.complete(worker, prompt=[tokenize(prompt) for prompt in prompts], max_tokens=4)
        assert [choice["text"] for choice in numbers.json()["choices"]] == expected[::2]

    with_worker(scene, time_scale=FAST)


def test_the_length_of_an_answer(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        async def tokens_and_reason(**body: Any) -> tuple[int, str]:
            answer = (await client.complete(worker, **body)).json()
            return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

        natural, reason = await tokens_and_reason(messages=MESSAGES)
        assert 16 <= natural < 128
        assert reason == "stop"
        assert await tokens_and_reason(messages=MESSAGES) == (natural, "stop")
        assert await tokens_and_reason(prompt=PROMPT) == (16, "length")
        assert await tokens_and_reason(messages=MESSAGES, max_tokens=300) == (natural, "stop")
        assert await tokens_and_reason(messages=MESSAGES, max_tokens=300, ignore_eos=True) == (300, "length")
        assert await tokens_and_reason(messages=MESSAGES, max_tokens=9, max_completion_tokens=7) == (7, "length")
        assert await tokens_and_reason(messages=MESSAGES, min_tokens=200) == (200, "stop")
        assert await tokens_and_reason(messages=MESSAGES, vllm_xargs={"output_tokens": 5}) == (5, "stop")

    with_worker(scene, time_scale=FAST)


def test_a_stop_string_ends_the_answer_before_it(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        text = expected_text(PROMPT, 10)
        stop = text[21:27]
        answer = (await client.complete(worker, prompt=PROMPT, max_tokens=10, stop=[stop, "§"])).json()
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:21], "stop", stop)
        kept = {"stop": stop, "include_stop_str_in_output": True}
        stream = await client.stream(worker, prompt=PROMPT, max_tokens=10, **kept)
        assert stream.text() == text[:27]

    with_worker(scene, time_scale=FAST)


def test_logprobs_echo_and_token_ids(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        answer = (await client.complete(worker, prompt=PROMPT, max_tokens=3, logprobs=1, echo=True)).json()
        assert answer["choices"][0]["text"] == PROMPT + expected_text(PROMPT, 3)
        assert "".join(answer["choices"][0]["logprobs"]["tokens"]) == expected_text(PROMPT, 3)
        chat = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
        choice = (await client.complete(worker, **chat)).json()["choices"][0]
        assert "".join(each["token"] for each in choice["logprobs"]["content"]) == choice["message"]["content"]
        assert choice["token_ids"] == tokenize(expected_chat_text(MESSAGES, 3))

    with_worker(scene, time_scale=FAST)


def test_a_forced_tool_is_called(with_worker: Callable[..., None]) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
    named = {"type": "function", "function": {"name": "b"}}

    async def scene(client: Any, worker: EmulatedWorker) -> None:
        for choice, name in (("required", "a"), (named, "b")):
            body = {"messages": MESSAGES, "tools": tools, "tool_choice": choice}
            answer = (await client.complete(worker, **body)).json()["choices"][0]
            (call,) = answer["message"]["tool_calls"]
            assert (call["function"]["name"], answer["finish_reason"]) == (name, "tool_calls")
            stream = await client.stream(worker, **body)
            deltas = [chunk["choices"][0]["delta"] for chunk in stream.chunks]
            pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls", [])]
            assert pieces[0]["name"] == name
            assert "".join(piece["arguments"] for piece in pieces) == call["function"]["arguments"]
            assert set(json.loads(call["function"]["arguments"])) == {"text"}
        free = (await client.complete(worker, messages=MESSAGES, tools=tools)).json()["choices"][0]
        assert free["message"]["content"]
        assert free["message"]["tool_calls"] == []

    with_worker(scene, time_scale=FAST)


def test_the_second_request_with_a_prompt_finds_it_cached(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        async def cached(**body: Any) -> int:
            answer = (await client.complete(worker, max_tokens=2, **body)).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        long = PROMPT * 10
        assert await cached(prompt=long) == 0
        tokens = len(tokenize(long))
        assert await cached(prompt=long) == tokens // 16 * 16
        assert await cached(prompt=long + "and more") == tokens // 16 * 16
        assert await cached(prompt=long, cache_salt="mine") == 0

    with_worker(scene, time_scale=FAST)


def test_the_official_client_works(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        async with openai.AsyncOpenAI(base_url=worker.url + "/v1", api_key="any", max_retries=0) as official:
            assert [model.id async for model in official.models.list()] == ["emulated"]
            messages: Any = MESSAGES
            whole = await official.chat.completions.create(model="emulated", messages=messages, max_tokens=6)
            assert whole.choices[0].message.content == expected_chat_text(MESSAGES, 6)
            stream = await official.completions.create(model="emulated", prompt=PROMPT, max_tokens=6, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == expected_text(PROMPT, 6)
            with pytest.raises(openai.BadRequestError, match="n must be at least 1"):
                await official.completions.create(model="emulated", prompt=PROMPT, n=0)
            embedding = await official.embeddings.create(model="emulated", input=["a", "b"], encoding_format="float")
            assert len(embedding.data) == 2

    with_worker(scene, time_scale=FAST)


def test_tokenize_and_detokenize_are_inverse(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        text = "naïve café 漢字 🙂 plain ascii"
        tokenized = (await client.http.post(worker.url + "/tokenize", json={"prompt": text})).json()
        assert tokenized["count"] == len(tokenized["tokens"])
        back = await client.http.post(worker.url + "/detokenize", json={"tokens": tokenized["tokens"]})
        assert back.json()["prompt"] == text
        chat = (await client.http.post(worker.url + "/tokenize", json={"messages": MESSAGES})).json()
        answer = await client.complete(worker, messages=MESSAGES, max_tokens=1)
        assert answer.json()["usage"]["prompt_tokens"] == chat["count"]
        both = await client.http.post(worker.url + "/tokenize", json={"prompt": text, "messages": MESSAGES})
        assert both.status_code == 400

    with_worker(scene, time_scale=FAST)


def test_one_request_takes_as_long_as_the_step_law_says(with_worker: Callable[..., None]) -> None:
    scale = 2.0
    prompt = [7] * 2_000
    output_tokens = 30

    async def scene(client: Any, worker: EmulatedWorker) -> None:
        stream = await client.stream(worker, prompt=prompt, max_tokens=output_tokens, ignore_eos=True)
        pairs_s = SETTINGS.attention_s_per_pair * 2_000.0**2
        ttft_s = (float(SETTINGS.step_s[2_000]) + pairs_s) / scale
        decode_s = (output_tokens - 1) * (float(SETTINGS.step_s[1]) + SETTINGS.decode_attention_s) / scale
        # A busy machine is late, never early.
        assert ttft_s * 0.99 < stream.at_s[0] < ttft_s * 1.5 + 0.1
        assert (ttft_s + decode_s) * 0.99 < stream.at_s[-1] < (ttft_s + decode_s) * 1.5 + 0.1
        # Token by token, not in one piece at the end.
        assert len(stream.chunks) > output_tokens / 2

    with_worker(scene, time_scale=scale)


def test_a_prefill_disturbs_the_decodes_beside_it(with_worker: Callable[..., None]) -> None:
    scale = 2.0

    async def scene(client: Any, worker: EmulatedWorker) -> None:
        decoding = asyncio.create_task(client.stream(worker, prompt="decode", max_tokens=60, ignore_eos=True))
        await worker.wait_until(lambda: worker.engine.batch.running_count == 1)
        await asyncio.sleep(0.1)
        await client.complete(worker, prompt=[9] * 2_040, max_tokens=1)
        at_s = (await decoding).at_s
        gaps = [later - earlier for earlier, later in pairwise(at_s)]
        chunk_s = float(SETTINGS.step_s[2_041]) / scale
        assert max(gaps) > 0.9 * chunk_s
        assert sorted(gaps)[len(gaps) // 2] < 0.2 * chunk_s

    with_worker(scene, time_scale=scale)


def test_a_client_that_leaves_frees_everything(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        for stream in (True, False):
            task = asyncio.create_task(client.complete(worker, prompt=PROMPT, max_tokens=5_000, stream=stream))
            await worker.wait_until(lambda: worker.engine.batch.running_count == 1)
            assert b'vllm:num_requests_running{engine="0",model_name="emulated"} 1.0' in worker.engine.metrics.text()
            task.cancel()
            await worker.wait_until(lambda: worker.is_idle)
            assert worker.engine.memory.used_share == 0.0
            assert worker.requests[-1].end == "left"
        assert b'vllm:num_requests_running{engine="0",model_name="emulated"} 0.0' in worker.engine.metrics.text()

    with_worker(scene, time_scale=1.0)


def test_metrics_have_vllm_s_names(with_pair: Callable[..., None]) -> None:
    async def scene(client: Any, prefill: EmulatedWorker, decode: EmulatedWorker) -> None:
        long = PROMPT * 10
        parameters = await client.prefill(prefill, long)
        await client.complete(decode, prompt=long, max_tokens=4, kv_transfer_params=parameters)
        await client.complete(decode, prompt="local " + long, max_tokens=4)
        text = (await client.http.get(decode.url + "/metrics")).text
        tokens = len(tokenize(long))
        local = len(tokenize("local " + long))
        labels = 'engine="0",model_name="emulated"'
        for line in (
            f'vllm:prompt_tokens_by_source_total{{{labels},source="external_kv_transfer"}} {tokens}.0',
            f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} {local}.0',
            f"vllm:external_prefix_cache_hits_total{{{labels}}} {tokens}.0",
            f"vllm:generation_tokens_total{{{labels}}} 8.0",
            f"vllm:nixl_xfer_time_seconds_count{{{labels}}} 1.0",
            f"vllm:time_to_first_token_seconds_count{{{labels}}} 2.0",
        ):
            assert line in text, line
        for name in (
            "num_requests_waiting",
            "num_requests_waiting_by_reason",
            "kv_cache_usage_perc",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
            "inter_token_latency_seconds_bucket",
            "request_time_per_output_token_seconds_bucket",
            "e2e_request_latency_seconds_bucket",
            "request_queue_time_seconds_bucket",
            "request_prefill_time_seconds_bucket",
            "request_decode_time_seconds_bucket",
            "request_prefill_kv_computed_tokens_bucket",
            "num_preemptions_total",
            "nixl_bytes_transferred_total",
            "nixl_num_failed_transfers_total",
            "nixl_num_kv_expired_reqs_total",
            "cache_config_info",
        ):
            assert f"\nvllm:{name}{{" in text, name

    with_pair(scene, time_scale=FAST, kv_lease_s=2_000.0)
