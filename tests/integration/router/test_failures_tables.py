"""Tables change, and fail to, under load."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from failure_scene import NumberedPrefill, Scene, completion, connected, decode_normally, run, scene
from router_under_test import running_router, until
from tables import table_of

from dolphin_router.contract import DocumentError, RoutingTable, write_table
from dolphin_router.decision import Action
from dolphin_router.routing import ActiveTable

EXPLAIN = [(b"x-dolphin-explain", b"1")]
SHORT, LONG = "hi", "The quick brown fox jumps over the lazy dog. " * 400


def replace_file(path: Path, content: bytes) -> None:
    """Put a file's new content in place at once."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


def short_digest(table: RoutingTable) -> bytes:
    return table.digest.removeprefix("sha256:")[:12].encode()


def told(answer: Any) -> tuple[bytes, bytes, bytes]:
    """Return table, cluster and action that an answer names."""
    names = (b"x-dolphin-table", b"x-dolphin-cluster", b"x-dolphin-action")
    table, cluster, action = (answer.values(name)[0] for name in names)
    return table, cluster, action


@pytest.mark.parametrize("by_file", [False, True])
def test_tables_swapped_under_load_decide_each_request_as_a_whole(by_file: bool, tmp_path: Path) -> None:
    """In one table the short prompts' cluster goes local and the long ones' remote, in the other the other way."""
    one, other = table_of("local", "remote"), table_of("remote", "local", seed=1)
    meant = {
        (short_digest(table), b"%d" % place, cluster.action.encode())
        for table in (one, other)
        for place, cluster in enumerate(table.decider.clusters)
    }
    path = tmp_path / "table.json"
    path.write_bytes(write_table(one))

    async def play() -> None:
        workers: dict[str, Any] = {"prefill": [NumberedPrefill()] * 2, "decode": [decode_normally] * 2}
        async with scene(**workers, table=str(path), explain=True) as s:
            stop = asyncio.Event()
            answers: Counter[tuple[bytes, bytes, bytes]] = Counter()

            async def load(number: int) -> None:
                async with connected(s.router) as client:
                    while not stop.is_set():
                        prompt = (SHORT, LONG)[number % 2]
                        answer = await client.ask(completion(stream=number % 3 == 0, headers=EXPLAIN, prompt=prompt))
                        assert answer.status == 200
                        answers[told(answer)] += 1

            tasks = [asyncio.ensure_future(load(number)) for number in range(8)]
            tables = [ActiveTable.from_table(table) for table in (other, one)]
            for number in range(60):
                if by_file:
                    replace_file(path, write_table((other, one)[number % 2]))
                else:
                    s.router.plane.active = tables[number % 2]
                await asyncio.sleep(0.05)
            stop.set()
            await asyncio.gather(*tasks)
            assert set(answers) == meant
            assert sum(answers.values()) > 200
            for record in s.records:
                table = one if record.table_digest == one.digest else other
                assert record.table_digest == table.digest
                assert record.decision is not None
                assert record.action_taken == table.decider.clusters[record.decision.cluster].action
            await s.assert_at_rest()
            if by_file:
                assert s.router.table_reloads.refused == 0
                assert s.router.table_reloads.accepted > 2

    run(play())


def test_a_table_that_goes_while_a_prompt_is_computed_is_still_the_one_that_decided() -> None:
    one, other = table_of("remote"), table_of("remote", seed=1)
    go_on = asyncio.Event()

    async def play() -> None:
        async def prefill(leg: Any, peer: Any) -> None:
            await go_on.wait()
            await NumberedPrefill()(leg, peer)

        async with scene(prefill=[prefill], explain=True) as s:
            s.router.plane.active = ActiveTable.from_table(one)
            async with connected(s.router) as client:
                await client.send(completion(headers=EXPLAIN))
                await until(lambda: len(s.prefills[0].requests) == 1, "the prompt is computed")
                s.router.plane.active = ActiveTable.from_table(other)
                go_on.set()
                assert told(await client.answer()) == (short_digest(one), b"0", b"remote")
                await client.send(completion(headers=EXPLAIN))
                assert told(await client.answer()) == (short_digest(other), b"0", b"remote")
            assert [record.table_digest for record in s.records] == [one.digest, other.digest]

    run(play())


BROKEN = {
    "no JSON": b"not JSON",
    "nothing": b"",
    "half a table": write_table(table_of("local"))[:300],
    "another document": b"{}",
    "changed by hand": write_table(table_of("local")).replace(b'"local"', b'"remote"'),
    "of another version": write_table(table_of("local")).replace(b"table/v1", b"table/v9"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_refused_with_the_reason_and_the_old_one_stays(name: str, tmp_path: Path) -> None:
    good, better = table_of("local"), table_of("local", seed=1)
    path = tmp_path / "table.json"
    path.write_bytes(write_table(good))

    async def play() -> None:
        async with scene(table=str(path), explain=True) as s:
            reloads = s.router.table_reloads
            assert (reloads.accepted, reloads.refused, reloads.last_refusal) == (1, 0, None)
            replace_file(path, BROKEN[name])
            await until(lambda: reloads.refused == 1, "the table is refused", limit_s=2.0)
            assert reloads.last_refusal is not None
            assert str(path) in reloads.last_refusal
            assert told(await s.complete(headers=EXPLAIN))[0] == short_digest(good)
            replace_file(path, write_table(better))
            await until(lambda: reloads.accepted == 2, "the good one is taken", limit_s=2.0)
            assert reloads.last_refusal is None
            assert told(await s.complete(headers=EXPLAIN))[0] == short_digest(better)

    run(play())


def test_a_table_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    good = table_of("local")
    path = tmp_path / "table.json"
    path.write_bytes(write_table(good))

    async def play() -> None:
        async with scene(table=str(path), explain=True) as s:
            path.unlink()
            await until(lambda: s.router.table_reloads.refused == 1, "its absence is noticed", limit_s=2.0)
            assert told(await s.complete(headers=EXPLAIN))[0] == short_digest(good)

    run(play())


def test_a_mounted_config_map_is_noticed_within_a_second(tmp_path: Path) -> None:
    """Kubernetes writes a new folder and swaps the link to it; the file's own link never changes."""
    one, other = table_of("local"), table_of("remote", seed=1)
    for name, table in (("..2026_01", one), ("..2026_02", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.json").write_bytes(write_table(table))
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "table.json").symlink_to("..data/table.json")

    async def play() -> None:
        async with scene(table=str(tmp_path / "table.json")) as s:
            plane = s.router.plane
            assert plane.active is not None
            assert plane.active.table.digest == one.digest
            (tmp_path / "..data_tmp").symlink_to("..2026_02")
            os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
            await until(lambda: digest_in_use(s) == other.digest, "the new table is in use", limit_s=1.0)

    run(play())


def digest_in_use(s: Scene) -> str | None:
    active = s.router.plane.active
    return None if active is None else active.table.digest


def test_a_table_that_an_engine_cannot_do_is_refused(tmp_path: Path) -> None:
    """A decode worker of SGLang cannot compute a prompt."""
    path = tmp_path / "table.json"
    path.write_bytes(write_table(table_of("local", "remote")))

    async def play() -> None:
        url = "http://127.0.0.1:1"
        settings: dict[str, Any] = {"engine": "sglang", "decode": [url], "table": str(path), "wait_for_workers": False}
        with pytest.raises(DocumentError, match="local prefill, which decode workers of sglang cannot do"):
            async with running_router(**settings):
                pass
        async with running_router(**settings, aggregated=["http://127.0.0.1:2"]) as router:
            assert router.plane.active is not None
        path.write_bytes(write_table(table_of("remote", "remote")))
        async with running_router(**settings) as router:
            replace_file(path, write_table(table_of("local", "remote")))
            await until(lambda: router.table_reloads.refused == 1, "the table is refused", limit_s=2.0)
            assert router.plane.active is not None
            assert {cluster.action for cluster in router.plane.active.table.decider.clusters} == {"remote"}

    run(play())


# The shadow


def test_a_shadow_table_decides_without_acting(tmp_path: Path) -> None:
    path = tmp_path / "shadow.json"
    path.write_bytes(write_table(table_of("local", "local", seed=1)))

    async def play() -> None:
        async with scene(prefill=[NumberedPrefill()], shadow_table=str(path)) as s:
            s.router.plane.active = ActiveTable.from_table(table_of("local", "remote"))
            for prompt in (SHORT, LONG, LONG):
                assert (await s.complete(prompt=prompt)).status == 200
            assert [record.action_taken for record in s.records] == ["local", "remote", "remote"]
            comparison = s.router.plane.shadow_comparison
            assert (comparison.agreements, comparison.disagreements) == ({0: 1}, {1: 2})
            assert comparison.decisions == {(Action.LOCAL, Action.LOCAL): 1, (Action.REMOTE, Action.LOCAL): 2}

    run(play())


def test_a_request_that_is_tried_again_is_compared_once() -> None:
    async def die_always(leg: Any, peer: Any) -> None:
        peer.reset()

    async def play() -> None:
        async with scene(prefill=[die_always, NumberedPrefill()]) as s:
            s.router.plane.shadow = ActiveTable.from_table(table_of("local"))
            assert (await s.complete()).status == 200
            # Without a table the fallback is what is compared with.
            assert s.router.plane.shadow_comparison.decisions == {(Action.REMOTE, Action.LOCAL): 1}

    run(play())
