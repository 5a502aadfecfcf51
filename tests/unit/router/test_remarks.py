"""What is odd about a configuration is said, and what is not odd is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolphin_router.contract import RouterConfig, RoutingTable, WorkerAddress, Workers
from dolphin_router.process.remarks import remarks


def config(*, prefill: int = 2, decode: int = 2, shared: int = 0) -> RouterConfig:
    def addresses(role: int, count: int) -> tuple[WorkerAddress, ...]:
        return tuple(WorkerAddress(url=f"http://10.0.{role}.{place}:8000") for place in range(count))

    return RouterConfig(
        engine="vllm-nixl",
        workers=Workers(prefill=addresses(1, prefill), decode=addresses(2, decode) + addresses(1, shared)),
    )


def test_nothing_is_odd_about_a_table_of_its_own_split(build_table: Callable[..., RoutingTable]) -> None:
    assert list(remarks(config(), build_table())) == []


@pytest.mark.parametrize(
    ("of", "has_table", "told"),
    [
        (config(), False, ["no table"]),
        (config(prefill=0), True, ["no prefill worker"]),
        (config(prefill=1), True, ["learned for 2P2D, but 1P2D"]),
        (config(decode=1, shared=1), True, ["named as a prefill and as a decode worker"]),
        (config(prefill=0), False, ["no table", "no prefill worker"]),
    ],
)
def test_what_is_odd_is_said_once(
    build_table: Callable[..., RoutingTable], of: RouterConfig, has_table: bool, told: list[str]
) -> None:
    said = list(remarks(of, build_table() if has_table else None))
    assert len(said) == len(told)
    assert all(part in sentence for part, sentence in zip(told, said, strict=True))
