"""Running a router until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from pathlib import Path

import uvloop

from dolphin_router.contract import RouterConfig

from .options import Options
from .router import Router

logger = logging.getLogger(__name__)


def run(config: RouterConfig, options: Options, *, config_path: Path | None) -> int:
    """Run in this process until SIGTERM or SIGINT, and return the exit code.

    Raises:
        DocumentError: a table cannot be used.
        OSError: an address or a file cannot be used.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, options, config_path))


async def _serve(config: RouterConfig, options: Options, config_path: Path | None) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    router = Router(config, options, config_path=config_path)
    await router.start()
    # What is there now stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    logger.info("listening host=%s port=%d", options.host, router.server.port)
    await stop.wait()
    logger.info("stopping: finishing answers that are under way, for at most %g s", options.patience_s)
    # A second signal ends the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    cut = await router.stop()
    if cut:
        logger.warning("answers cut: %d", cut)
    return 1 if cut else 0
