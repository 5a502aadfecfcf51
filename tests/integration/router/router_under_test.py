"""A router in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dolphin_router.contract import RouterConfig, WorkerAddress, Workers
from dolphin_router.process.options import Options
from dolphin_router.process.router import Router

OPTIONS = Options(host="127.0.0.1", port=0, admin_port=0, secret=b"secret of the tests", patience_s=2.0)


def addresses(urls: Sequence[str]) -> tuple[WorkerAddress, ...]:
    return tuple(WorkerAddress(url=url) for url in urls)


@asynccontextmanager
async def running_router(
    *,
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    aggregated: Sequence[str] = (),
    engine: str = "vllm-nixl",
    wait_for_workers: bool = True,
    options: Options = OPTIONS,
    config_path: Path | None = None,
    **settings: Any,
) -> AsyncIterator[Router]:
    """Run a router over these workers; ``settings`` are other fields of its configuration."""
    workers = Workers(prefill=addresses(prefill), decode=addresses(decode), aggregated=addresses(aggregated))
    config = RouterConfig(engine=engine, workers=workers, **settings)
    router = Router(config, replace(options), config_path=config_path)
    await router.start()
    try:
        if wait_for_workers:
            await until(lambda: all(state.is_ready for state in router.fleet.workers), "the workers are ready")
        yield router
    finally:
        await router.stop()


async def until(condition: Any, what: str, *, limit_s: float = 10.0) -> None:
    """Wait until a condition holds, and fail when it does not in time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not condition():
        assert loop.time() < end_s, f"not within {limit_s:g} s: {what}"
        await asyncio.sleep(0.005)
