"""What it costs to know how much of a prompt each worker holds.

    python benchmarks/prefix_index.py [--json]

By the router's own history: the keys of a prompt's blocks, the match for all workers, the note of where it was sent
(after the request has gone out), the memory of an entry; ``view`` is all that stands before a decision, and together
with the decision it has 20 µs for a prompt of 2,000 tokens. By KV events: the match of a prompt of 2,000 token ids, the
upkeep for as many that a worker stores and removes, the memory of a block, the reception of a message over ZeroMQ.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import uvloop
import zmq

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.kv_events import EventIndex, decode_batch
from dolphin_router.kv_events.subscriptions import EventSubscriptions
from dolphin_router.prefix_index import CacheView, PrefixIndex, block_keys, bytes_of_blocks, prompt_seed
from dolphin_router.worker import Worker

SIZES = {"8k": 8_000, "32k": 32_000, "220k": 220_000}
"""Bytes: prompts of about 2,000, 8,000 and 55,000 tokens."""
LIMITS_US = {"match_8k_4_workers_us": 4.0, "view_8k_4_workers_us": 17.0}
SEED = b"text\0\0\0\0\0\0model"

Timed = Callable[[], object]


def workers(count: int) -> list[str]:
    """Return the names of so many workers."""
    return [f"10.0.0.{number}:8000" for number in range(count)]


def text(size: int, *, variant: int = 0) -> memoryview:
    """Return a prompt of so many bytes, which shares no block with its other variants."""
    return memoryview(random.Random(variant).randbytes(size))


def history(count: int, *, size: int) -> tuple[PrefixIndex, tuple[int, ...], list[str]]:
    """Return an index in which worker ``i`` of ``n`` holds the first ``i/(n-1)`` of a prompt, its keys, the names."""
    index, names, content = PrefixIndex(capacity_tokens=10**7), workers(count), text(size)
    for number, name in enumerate(names):
        index.insert(name, block_keys(SEED, content[: size * number // max(count - 1, 1)]), bytes_per_token=4.0)
    return index, block_keys(SEED, content), names


def history_cases() -> dict[str, Timed]:
    """Return what is timed of the router's own history."""
    cases: dict[str, Timed] = {}
    request = CompletionRequest(b'{"model":"llama","messages":[]}', is_chat=True)
    cases["seed_us"] = lambda: prompt_seed(request)
    for label, size in SIZES.items():
        content = text(size)
        cases[f"keys_{label}_us"] = lambda content=content: block_keys(SEED, content)  # type: ignore[misc]
    for label, count in (("8k", 4), ("8k", 64), ("220k", 4)):
        index, keys, names = history(count, size=SIZES[label])
        match = index.matched_bytes
        cases[f"match_{label}_{count}_workers_us"] = lambda match=match, keys=keys, names=names: match(keys, names)  # type: ignore[misc]
    for label in ("8k", "220k"):
        index = PrefixIndex(capacity_tokens=200_000)
        keys = block_keys(SEED, text(SIZES[label]))
        cases[f"insert_again_{label}_us"] = lambda index=index, keys=keys: index.insert("a", keys, bytes_per_token=4.0)  # type: ignore[misc]
        prompts = [block_keys(SEED, text(SIZES[label], variant=variant)) for variant in range(1, 200)]
        cases[f"insert_new_{label}_us"] = _inserting(PrefixIndex(capacity_tokens=200_000), prompts)
    view = CacheView(PrefixIndex(capacity_tokens=10**6))
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "word " * 1600}]}).encode()
    chat = CompletionRequest(body, is_chat=True)
    names = workers(4)
    view.sent(view.prefix(chat, prompt_tokens=2000), names[:2], now_s=0.0)
    cases["view_8k_4_workers_us"] = lambda: view.cached_tokens(view.prefix(chat, prompt_tokens=2000), names, now_s=0.0)
    return cases


def _inserting(index: PrefixIndex, prompts: Sequence[tuple[int, ...]]) -> Timed:
    """Return a call that inserts the next of more prompts than there is room for, so that each pushes one out."""
    place = 0

    def insert() -> None:
        nonlocal place
        place = (place + 1) % len(prompts)
        index.insert("a", prompts[place], bytes_per_token=4.0)

    return insert


def stored(tokens: Sequence[int], *, block_size: int = 16) -> bytes:
    """Return vLLM's message that a prompt's blocks are stored."""
    blocks = len(tokens) // block_size
    event: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [hash(tuple(tokens[: (block + 1) * block_size])) for block in range(blocks)],
        "parent_block_hash": None,
        "token_ids": list(tokens[: blocks * block_size]),
        "block_size": block_size,
        "medium": "GPU",
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


def removed(payload: bytes) -> bytes:
    """Return the message that takes back what another has stored."""
    hashes = msgspec.msgpack.decode(payload)[1][0]["block_hashes"]
    return msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}], 0])


def event_cases() -> dict[str, Timed]:
    """Return what is timed of the index by events: prompts of 2,000 tokens in blocks of 16."""
    index, names = EventIndex(), workers(4)
    tokens = tuple(random.Random(1).choices(range(150_000), k=2000))
    for number, name in enumerate(names):
        index.watch(name)
        index.apply(name, decode_batch(stored(tokens[: 2000 * number // 3])))
    store = stored(random.Random(2).choices(range(150_000), k=2000))
    remove = removed(store)

    def keep_up() -> None:
        index.apply(names[0], decode_batch(store))
        index.apply(names[0], decode_batch(remove))

    return {
        "events_match_2k_4_workers_us": lambda: index.matched_tokens(tokens, names, now_s=0.0),
        "events_match_unknown_us": lambda: index.matched_tokens(tokens[1:], names, now_s=0.0),
        "events_store_and_remove_2k_us": keep_up,
    }


def time_all(cases: dict[str, Timed], *, turns: int) -> dict[str, float]:
    """Return the least time of each call, in microseconds, since what else the machine does only adds to it."""
    times_us: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, call in cases.items():
            calls = 200 if "8k" in name or "unknown" in name or "seed" in name else 20
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times_us[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: min(times) for name, times in times_us.items()}


def bytes_each(fill: Callable[[], tuple[object, int]]) -> float:
    """Return the memory for each of the entries that are made."""
    gc.collect()
    tracemalloc.start()
    kept, entries = fill()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return used / entries


def filled_history() -> tuple[object, int]:
    """Return a full index of 16 workers, and its entries."""
    index = PrefixIndex(capacity_tokens=10**9, max_blocks=32_768)
    for variant in range(2100):
        keys = block_keys(SEED, text(8192, variant=variant))
        index.insert(f"10.0.0.{variant % 16}:8000", keys, bytes_per_token=4.0)
    return index, len(index)


def filled_events() -> tuple[object, int]:
    """Return an index of one worker that holds 512,000 tokens, and its blocks."""
    index = EventIndex()
    index.watch("a")
    generator = random.Random(3)
    for _ in range(128):
        index.apply("a", decode_batch(stored(generator.choices(range(150_000), k=4000))))
    return index, index.blocks("a")


def publish(port: Connection, messages: int) -> None:
    """Publish a block a millisecond once someone has subscribed, as an engine would, in a process of its own."""
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port.send(publisher.bind_to_random_port("tcp://127.0.0.1"))
    publisher.recv()
    payload = stored(range(16))
    for number in range(messages):
        publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
        time.sleep(0.001)
    publisher.close()
    context.term()


async def receive_us(*, messages: int = 1000) -> float:
    """Return the CPU time of a message with one block, ZeroMQ's own thread included, in microseconds."""
    here, there = multiprocessing.Pipe()
    engine = multiprocessing.get_context("spawn").Process(target=publish, args=(there, messages))
    engine.start()
    index = EventIndex()
    subscriptions = EventSubscriptions(index)
    endpoint = f"tcp://127.0.0.1:{here.recv()}"
    subscriptions.follow([Worker(role="decode", host="w", port=1, kv_events_endpoint=endpoint)])
    start = time.process_time()
    while index.counters.messages < messages:
        await asyncio.sleep(0.05)
    used = time.process_time() - start
    await subscriptions.close()
    engine.join()
    return used / messages * 1e6


def shortfall_tokens() -> dict[str, float]:
    """Return by how many tokens a match falls short on average, at 4 bytes a token, for a prefix of random length."""
    generator = random.Random(4)
    missed = {}
    for label, (low, high) in {"below_8k": (512, 8192), "8k_to_220k": (8192, 220_000)}.items():
        sizes = [generator.randrange(low, high) for _ in range(2000)]
        lost = [size - bytes_of_blocks(len(block_keys(b"", bytes(size)))) for size in sizes]
        missed[f"shortfall_{label}_tokens"] = statistics.mean(lost) / 4
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; return 1 when one is above its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--turns", type=int, default=31, help="measurements of each call, %(default)s unless given")
    arguments = parser.parse_args(argv)
    figures = time_all({**history_cases(), **event_cases()}, turns=arguments.turns)
    figures["receive_message_cpu_us"] = uvloop.run(receive_us())
    figures["history_entry_bytes"] = bytes_each(filled_history)
    figures["events_block_bytes"] = bytes_each(filled_events)
    figures.update(shortfall_tokens())
    if arguments.json:
        print(json.dumps({name: round(figure, 2) for name, figure in figures.items()}))
    else:
        for name, figure in figures.items():
            limit = f"  at most {LIMITS_US[name]:.0f}" if name in LIMITS_US else ""
            print(f"{name:<34}{figure:>9.2f}{limit}")
    return int(any(figures[name] > limit for name, limit in LIMITS_US.items()))


if __name__ == "__main__":
    raise SystemExit(main())
