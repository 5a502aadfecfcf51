"""Events arrive over ZeroMQ, and what is lost on the way is asked for again or makes the worker forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvloop
import zmq
import zmq.asyncio

from dolphin_router.kv_events import EventIndex
from dolphin_router.kv_events.subscriptions import EventSubscriptions
from dolphin_router.worker import Worker

BLOCK = 16
PROMPT = tuple(range(1000, 1000 + 20 * BLOCK))
END = b"\xff" * 8


class Engine:
    """Publishes events as vLLM does, with a memory of past messages and faults on demand."""

    def __init__(self, context: zmq.asyncio.Context, *, answers_replays: bool = True) -> None:
        self._publisher = context.socket(zmq.XPUB)
        self._publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._publisher.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = f"tcp://127.0.0.1:{self._publisher.bind_to_random_port('tcp://127.0.0.1')}"
        self._replayer = context.socket(zmq.ROUTER)
        self.replay_endpoint = f"tcp://127.0.0.1:{self._replayer.bind_to_random_port('tcp://127.0.0.1')}"
        self.number = 0
        self.kept: list[tuple[int, bytes]] = []
        self.replays = 0
        self.as_map = False
        self._task = asyncio.create_task(self._answer()) if answers_replays else None

    async def _answer(self) -> None:
        while True:
            identity, empty, first = await self._replayer.recv_multipart()
            assert empty == b""
            self.replays += 1
            for number, payload in self.kept:
                if number >= int.from_bytes(first, "big"):
                    await self._replayer.send_multipart([identity, b"", number.to_bytes(8, "big"), payload])
            await self._replayer.send_multipart([identity, b"", END, b""])

    async def subscribed(self) -> None:
        """Wait until a subscriber would not miss what is published."""
        async with asyncio.timeout(10):
            assert await self._publisher.recv() == b"\x01"

    def payload(self, *events: dict[str, Any]) -> bytes:
        if self.as_map:
            return msgspec.msgpack.encode({"ts": 1.0, "events": events, "data_parallel_rank": 0})
        return msgspec.msgpack.encode([1.0, [[event["type"], *list(event.values())[1:]] for event in events], 0])

    async def publish(self, *events: dict[str, Any], lose: bool = False, keep: bool = True) -> None:
        payload = self.payload(*events)
        if keep:
            self.kept.append((self.number, payload))
        if not lose:
            await self._publisher.send_multipart([b"kv@engine", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    async def send(self, *frames: bytes) -> None:
        await self._publisher.send_multipart(frames)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._publisher.close(linger=0)
        self._replayer.close(linger=0)


def stored(first: int, end: int) -> dict[str, Any]:
    """Return the event that the prompt's blocks from ``first`` to before ``end`` are held."""
    return {
        "type": "BlockStored",
        "block_hashes": [b"hash of block %d" % block for block in range(first, end)],
        "parent_block_hash": b"hash of block %d" % (first - 1) if first else None,
        "token_ids": list(PROMPT[first * BLOCK : end * BLOCK]),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
    }


def removed(block: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [b"hash of block %d" % block], "medium": "GPU"}


class Router:
    """What the router has: an index and its subscriptions."""

    def __init__(self, replay_s: float) -> None:
        self.index = EventIndex()
        self.subscriptions = EventSubscriptions(self.index, replay_s=replay_s)

    def held(self, port: int = 1) -> int:
        """Return how many of the prompt's blocks the worker is known to hold."""
        return self.index.matched_tokens(PROMPT, [f"w:{port}"], now_s=0.0)[0] // BLOCK

    async def comes_to_hold(self, blocks: int, port: int = 1) -> None:
        await until(lambda: self.held(port) == blocks)


def worker(engine: Engine, *, replay: bool = True, port: int = 1) -> Worker:
    return Worker(
        role="prefill",
        host="w",
        port=port,
        kv_events_endpoint=engine.endpoint,
        kv_replay_endpoint=engine.replay_endpoint if replay else None,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def router(*, replay_s: float = 5.0) -> AsyncIterator[Router]:
    subject = Router(replay_s)
    try:
        yield subject
    finally:
        await subject.subscriptions.close()


@asynccontextmanager
async def engines(count: int = 1, **faults: Any) -> AsyncIterator[list[Engine]]:
    context = zmq.asyncio.Context()
    made = [Engine(context, **faults) for _ in range(count)]
    try:
        yield made
    finally:
        for engine in made:
            engine.close()
        context.destroy(linger=0)


def run(
    main: Coroutine[Any, Any, None], *, loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("as_map", [False, True], ids=["lists", "maps"])
@pytest.mark.parametrize("replay", [False, True], ids=["no-replay", "replay"])
def test_events_are_followed(loop: Callable[[], asyncio.AbstractEventLoop], as_map: bool, replay: bool) -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            engine.as_map = as_map
            subject.subscriptions.follow([worker(engine, replay=replay)])
            assert subject.index.without_events() == ["w:1"]
            await engine.subscribed()
            await engine.publish(stored(0, 3))
            await engine.publish(stored(3, 6), removed(5))
            await subject.comes_to_hold(5)
            assert subject.index.without_events() == []
            assert subject.index.is_complete("w:1")
            counters = subject.index.counters
            assert (counters.messages, counters.events) == (2, 3)
            assert counters.gaps == counters.forgets == counters.restarts == counters.decode_errors == 0

    run(main(), loop=loop)


def test_missed_messages_are_asked_for_again() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine)])
            await engine.subscribed()
            await engine.publish(stored(0, 1))
            await subject.comes_to_hold(1)
            for block in range(1, 4):
                await engine.publish(stored(block, block + 1), lose=True)
            await engine.publish(stored(4, 5))
            await engine.publish(stored(5, 6))
            await subject.comes_to_hold(6)
            counters = subject.index.counters
            assert (counters.gaps, counters.forgets, counters.unplaced_blocks) == (1, 0, 0)
            assert engine.replays >= 1
            assert counters.messages == 6  # none twice
            assert subject.index.is_complete("w:1")

    run(main())


async def _gap(engine: Engine, subject: Router) -> None:
    """Publish blocks of which the third's message is lost."""
    await engine.subscribed()
    await engine.publish(stored(0, 1))
    await engine.publish(stored(1, 2))
    await subject.comes_to_hold(2)
    await engine.publish(stored(2, 3), lose=True)


def test_without_a_replay_endpoint_a_gap_makes_the_worker_forgotten() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine, replay=False)])
            await _gap(engine, subject)
            await engine.publish(stored(0, 1))
            await subject.comes_to_hold(1)
            counters = subject.index.counters
            assert (counters.gaps, counters.forgets, counters.replays) == (1, 1, 0)
            assert not subject.index.is_complete("w:1")

    run(main())


def test_a_replay_endpoint_that_does_not_answer_is_given_up() -> None:
    async def main() -> None:
        async with engines(answers_replays=False) as (engine,), router(replay_s=0.2) as subject:
            subject.subscriptions.follow([worker(engine)])
            await _gap(engine, subject)
            await engine.publish(stored(0, 1))
            await subject.comes_to_hold(1)
            assert subject.index.counters.forgets == 1
            await engine.publish(stored(1, 2))
            await subject.comes_to_hold(2)

    run(main())


def test_messages_that_are_no_longer_kept_make_the_worker_forgotten() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine)])
            await _gap(engine, subject)
            engine.kept.clear()
            await engine.publish(stored(0, 1), lose=True)
            await engine.publish(stored(1, 2))
            await engine.publish(stored(2, 4))
            await subject.comes_to_hold(4)
            assert subject.index.counters.forgets == 1
            assert not subject.index.is_complete("w:1")

    run(main())


def test_an_engine_that_restarts_is_forgotten() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine)])
            await engine.subscribed()
            await engine.publish(stored(0, 5))
            await engine.publish(stored(5, 6))
            await subject.comes_to_hold(6)
            engine.number = 0
            engine.kept.clear()
            await engine.publish(stored(0, 2))
            await subject.comes_to_hold(2)
            counters = subject.index.counters
            assert (counters.restarts, counters.forgets, counters.gaps) == (1, 1, 0)
            assert subject.index.is_complete("w:1")

    run(main())


def test_an_engine_that_restarted_unseen_is_read_from_its_new_beginning() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine)])
            await engine.subscribed()
            for block in range(6):
                await engine.publish(stored(block, block + 1))
            await subject.comes_to_hold(6)
            engine.number = 0
            engine.kept.clear()
            await engine.publish(stored(0, 1), lose=True)
            await engine.publish(stored(1, 3), lose=True)
            await engine.publish(stored(3, 4))
            await subject.comes_to_hold(4)
            assert subject.index.counters.restarts == 1
            assert subject.index.is_complete("w:1")

    run(main())


def test_what_an_engine_published_before_is_caught_up_with() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            await engine.publish(stored(0, 4))
            await engine.publish(removed(3))
            subject.subscriptions.follow([worker(engine)])
            await subject.comes_to_hold(3)  # without a new message
            assert subject.index.is_complete("w:1")
            await engine.subscribed()
            await engine.publish(stored(3, 5))
            await subject.comes_to_hold(5)
            counters = subject.index.counters
            assert (counters.gaps, counters.forgets, counters.restarts, counters.messages) == (0, 0, 0, 3)

    run(main())


def test_without_a_replay_endpoint_a_router_that_joins_late_knows_that_it_knows_little() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            await engine.publish(stored(0, 4))
            subject.subscriptions.follow([worker(engine, replay=False)])
            await engine.subscribed()
            await engine.publish(stored(4, 5))
            await engine.publish(stored(0, 2))
            await subject.comes_to_hold(2)
            counters = subject.index.counters
            assert (counters.gaps, counters.forgets, counters.unplaced_blocks) == (0, 0, 1)
            assert not subject.index.is_complete("w:1")

    run(main())


@pytest.mark.parametrize("topic", [(), (b"kv",)], ids=["payload", "topic-payload"])
def test_messages_without_numbers_are_followed(topic: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine, replay=False)])
            await engine.subscribed()
            await engine.send(*topic, engine.payload(stored(0, 2)))
            await engine.send(*topic, engine.payload(stored(2, 4)))
            await subject.comes_to_hold(4)
            assert subject.index.publishes("w:1")

    run(main())


def test_nonsense_on_the_wire_is_counted_and_survived() -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            subject.subscriptions.follow([worker(engine, replay=False)])
            await engine.subscribed()
            await engine.send(b"nonsense")
            await engine.send(b"topic", b"short", engine.payload(stored(0, 1)))
            await engine.send(b"topic", b"\x00" * 8, b"payload", b"one more")
            await engine.send(b"topic", b"\x00" * 8, b"\xc1")
            await engine.send(b"topic", (1).to_bytes(8, "big"), engine.payload(stored(0, 2)))
            await subject.comes_to_hold(2)
            assert subject.index.counters.decode_errors == 4

    run(main())


def test_an_engine_may_come_back_on_the_same_address() -> None:
    async def main() -> None:
        context = zmq.asyncio.Context()
        publisher = context.socket(zmq.XPUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        there = Worker(role="decode", host="w", port=1, kv_events_endpoint=f"tcp://127.0.0.1:{port}")

        async def publish(socket: zmq.asyncio.Socket, number: int, event: list[Any]) -> None:
            payload = msgspec.msgpack.encode([0.0, [event]])
            await socket.send_multipart([b"", number.to_bytes(8, "big"), payload])

        def block(count: int) -> list[Any]:
            event = stored(0, count)
            return [event["type"], *list(event.values())[1:]]

        async with router() as subject:
            subject.subscriptions.follow([there])
            async with asyncio.timeout(10):
                await publisher.recv()
            await publish(publisher, 0, block(5))
            await subject.comes_to_hold(5)
            publisher.close(linger=0)
            publisher = context.socket(zmq.XPUB)
            await until(lambda: _binds(publisher, port))
            async with asyncio.timeout(10):
                await publisher.recv()
            await publish(publisher, 0, block(2))
            await subject.comes_to_hold(2)
            assert subject.index.counters.restarts == 1
        context.destroy(linger=0)

    run(main())


def _binds(socket: zmq.asyncio.Socket, port: int) -> bool:
    try:
        socket.bind(f"tcp://127.0.0.1:{port}")
    except zmq.ZMQError:
        return False
    return True


def test_workers_come_and_go() -> None:
    async def main() -> None:
        async with engines(3) as (first, second, third), router() as subject:
            follow = subject.subscriptions.follow
            silent = Worker(role="decode", host="w", port=9)
            follow([worker(first), worker(second, port=2), silent])
            for engine in (first, second):
                await engine.subscribed()
                await engine.publish(stored(0, 3))
            await subject.comes_to_hold(3)
            await subject.comes_to_hold(3, port=2)
            follow([worker(second, port=2), worker(third, port=3)])
            assert subject.held() == 0
            assert subject.held(port=2) == 3  # undisturbed
            await third.subscribed()
            await third.publish(stored(0, 1))
            await subject.comes_to_hold(1, port=3)
            await second.publish(stored(3, 4))
            await subject.comes_to_hold(4, port=2)
            follow([worker(first, port=2)])  # the same name, another address
            assert subject.held(port=2) == 0
            await subject.comes_to_hold(3, port=2)

    run(main())


def test_an_address_that_is_none_leaves_the_other_workers_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with engines() as (engine,), router() as subject:
            bad = Worker(role="decode", host="w", port=2, kv_events_endpoint="nowhere")
            subject.subscriptions.follow([bad, worker(engine)])
            await engine.subscribed()
            await engine.publish(stored(0, 3))
            await subject.comes_to_hold(3)
            assert subject.index.without_events() == ["w:2"]

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "w:2" in caplog.text


@pytest.mark.parametrize("replay", [False, True], ids=["live", "replay"])
def test_a_flood_of_events_does_not_hold_up_requests(replay: bool) -> None:
    async def main() -> None:
        messages = 2000
        async with engines() as (engine,), router() as subject:
            if not replay:
                subject.subscriptions.follow([worker(engine, replay=False)])
                await engine.subscribed()
            for _ in range(messages):
                await engine.publish(stored(0, 20), lose=replay)
            if replay:
                subject.subscriptions.follow([worker(engine)])
            turns = 0
            counters = subject.index.counters
            async with asyncio.timeout(20):
                while counters.messages < messages:
                    turns += counters.messages > 0
                    await asyncio.sleep(0)
            assert turns > 50

    run(main())


def test_closing_waits_for_workers_that_have_just_gone() -> None:
    async def main() -> None:
        async with engines() as (engine,), asyncio.timeout(10), router() as subject:
            subject.subscriptions.follow([worker(engine)])
            await engine.subscribed()
            subject.subscriptions.follow([])

    run(main())


def test_closing_ends_everything_at_once() -> None:
    async def main() -> None:
        async with engines() as (engine,):
            async with router() as subject:
                subject.subscriptions.follow([worker(engine)])
                await engine.subscribed()
                await engine.publish(stored(0, 1))
                await subject.comes_to_hold(1)
            assert subject.held() == 0
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in others if task.get_name().startswith("kv-events")]

    run(main())
