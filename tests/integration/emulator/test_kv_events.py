"""An engine's KV events tell what its prefix cache holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from dolphin_sim.emulator import EmulatedWorker, emulated_worker
from dolphin_sim.emulator.tokens import detokenize
from dolphin_sim.hardware import load_profile

PROMPT = "All that glitters is not gold, " * 20
BLOCK_TOKENS = 16
END = (-1).to_bytes(8, "big", signed=True)


class Events:
    """A subscriber that notes blocks by their text, from whichever encoding."""

    def __init__(self, worker: EmulatedWorker) -> None:
        assert worker.engine.kv_events is not None
        self.publisher = worker.engine.kv_events
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(self.publisher.endpoint)
        self.numbers: list[int] = []
        self.blocks: dict[int, tuple[int | None, str]] = {}
        self.were_cleared = False

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.destroy(linger=0)

    async def connected(self, client: Any, worker: EmulatedWorker) -> None:
        """A subscription takes a moment: ask until events come."""
        for attempt in range(200):
            await client.complete(worker, prompt=f"{attempt:04d} warming up. " * 8, max_tokens=1)
            while await self.socket.poll(20):
                await self.take()
            if self.numbers:
                return
        raise AssertionError("no event came")

    async def take(self) -> None:
        """Wait for a message and note what it says."""
        topic, number, payload = await self.socket.recv_multipart()
        assert topic == b""
        self.numbers.append(int.from_bytes(number, "big"))
        self.apply(payload)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Take messages until something holds."""
        async with asyncio.timeout(20.0):
            while not condition():
                await self.take()

    async def replayed(self, first: int) -> list[int]:
        """Ask for messages again, note what they say, and return their numbers."""
        dealer = self.context.socket(zmq.DEALER)
        assert self.publisher.replay_endpoint is not None
        dealer.connect(self.publisher.replay_endpoint)
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        numbers = []
        while True:
            _, number, payload = await asyncio.wait_for(dealer.recv_multipart(), 20.0)
            if number == END:
                return numbers
            numbers.append(int.from_bytes(number, "big"))
            self.apply(payload)

    def apply(self, payload: bytes) -> None:
        batch = msgspec.msgpack.decode(payload)
        for event in batch["events"] if isinstance(batch, dict) else batch[1]:
            if isinstance(event, list):
                names = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size"]
                event = dict(zip(names, event, strict=False))
            if event["type"] == "BlockStored":
                parent = event["parent_block_hash"]
                for place, block in enumerate(event["block_hashes"]):
                    tokens = event["token_ids"][place * event["block_size"] : (place + 1) * event["block_size"]]
                    self.blocks[block] = (parent, detokenize(tokens))
                    parent = block
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    # The subscription began after some blocks had come.
                    self.blocks.pop(block, None)
            else:
                self.were_cleared = True
                self.blocks.clear()

    def chains(self) -> set[str]:
        """The texts of all chains of blocks, from a prompt's beginning."""

        def whole(block: int) -> str:
            parent, text = self.blocks[block]
            return text if parent is None else whole(parent) + text

        return {whole(block) for block in self.blocks}


@pytest.mark.parametrize("encoding", ["0.11", "0.33", "main"])
def test_a_subscriber_knows_every_block_of_a_prompt(with_worker: Callable[..., None], encoding: str) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        with Events(worker) as events:
            await events.connected(client, worker)
            await client.complete(worker, prompt=PROMPT, max_tokens=2)
            whole = len(PROMPT) // 4 // BLOCK_TOKENS * BLOCK_TOKENS * 4
            await events.until(lambda: PROMPT[:whole] in events.chains())
            await client.http.post(worker.url + "/reset_prefix_cache")
            await events.until(lambda: events.were_cleared)
            assert events.numbers == list(range(events.numbers[0], events.numbers[0] + len(events.numbers)))

    with_worker(scene, time_scale=200.0, kv_events=encoding)


def test_evicted_blocks_are_taken_back(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        with Events(worker) as events:
            await events.connected(client, worker)
            for number in range(8):
                await client.complete(worker, prompt=f"{number} " + PROMPT, max_tokens=1)
            whole = len(PROMPT + "7 ") // 4 // BLOCK_TOKENS * BLOCK_TOKENS * 4
            await events.until(lambda: ("7 " + PROMPT)[:whole] in events.chains())
            assert len(events.blocks) <= 400 // BLOCK_TOKENS
            assert not any(chain.startswith("0 All") for chain in events.chains())

    profile = load_profile("h20x4-72b").replaced(kv_capacity_tokens=400)
    with_worker(scene, time_scale=200.0, kv_events="0.33", profile=profile)


def test_lost_batches_are_replayed(with_worker: Callable[..., None]) -> None:
    async def scene(client: Any, worker: EmulatedWorker) -> None:
        with Events(worker) as events:
            await events.connected(client, worker)
            before = events.numbers[-1]
            events.publisher.lose(2)
            for number in range(4):
                await client.complete(worker, prompt=f"{number} " + PROMPT, max_tokens=1)
            await events.until(lambda: before + 4 in events.numbers)
            assert events.numbers[-2:] == [before + 3, before + 4]
            assert await events.replayed(before + 1) == [before + 1, before + 2, before + 3, before + 4]
            assert {chain[:1] for chain in events.chains() if "glitters" in chain} == set("0123")

    with_worker(scene, time_scale=200.0, kv_events="0.33")


def test_a_restart_begins_at_number_0_with_an_empty_cache(open_client: Callable[[], Any]) -> None:
    async def scene() -> None:
        ports: dict[str, int] = {}
        for _ in range(2):
            async with emulated_worker(time_scale=200.0, kv_events="0.33", **ports) as worker, open_client() as client:
                publisher = worker.engine.kv_events
                assert publisher is not None
                assert publisher.replay_endpoint is not None
                ports = {
                    "port": worker.port,
                    "kv_events_port": int(publisher.endpoint.rsplit(":", 1)[1]),
                    "kv_replay_port": int(publisher.replay_endpoint.rsplit(":", 1)[1]),
                }
                answer = await client.complete(worker, prompt=PROMPT, max_tokens=1)
                assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                with Events(worker) as events:
                    assert (await events.replayed(0))[0] == 0

    asyncio.run(scene())
