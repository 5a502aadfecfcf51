"""Running a router until it is told to stop: in this process, or in several that share the port."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from dolphin_router.admin.handler import AdminHandler
from dolphin_router.admin.several import SeveralHandler
from dolphin_router.contract import DocumentError, RouterConfig
from dolphin_router.http.limits import HttpLimits
from dolphin_router.server import Server

from .options import Options
from .processes import Child, run_processes
from .router import Router
from .view import View

logger = logging.getLogger(__name__)

ADMIN_PATIENCE_S = 1.0


def run(config: RouterConfig, options: Options, *, config_path: Path | None) -> int:
    """Run until SIGTERM or SIGINT, and return the exit code: 1 when answers had to be cut.

    Raises:
        DocumentError: a table cannot be used, or several processes cannot do what is asked.
        OSError: an address or a file cannot be used.
    """
    if options.processes > 1 and config.notice_endpoint is not None:
        raise DocumentError(
            source="arguments",
            field="--workers",
            problem=f"is {options.processes}, but notices come to {config.notice_endpoint} and so to one process only",
            remedy="give --workers 1",
        )
    if options.processes == 1:
        return _run(_serve(config, options, config_path, None))
    return run_processes(
        options,
        lambda child: _run(_serve(config, replace(options, port=child.port), config_path, child)),
        lambda child: _run(_administer(options, child)),
    )


def _run(serving: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serving)


async def _serve(config: RouterConfig, options: Options, config_path: Path | None, child: Child | None) -> int:
    stop, hurry = _stop_events(child)
    router = Router(config, options, config_path=config_path)
    # Of several processes, one speaks for all: it checks the token.
    token = options.admin_token if child is None else None
    loop = asyncio.get_running_loop()
    admin = Server(AdminHandler(View(router), token=token), loop=loop, limits=HttpLimits())
    await router.start()
    if child is None:
        await admin.start(options.admin_host, options.admin_port)
        logger.info("admin port host=%s port=%d", options.admin_host, admin.port)
    else:
        await admin.start_unix(child.admin_sockets[child.place])
    # What is there now stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    logger.info("listening host=%s port=%d", options.host, router.server.port)
    await stop.wait()
    logger.info("stopping: finishing answers that are under way, for at most %g s", options.patience_s)
    cut = await router.stop(hurry=hurry)
    await admin.stop(patience_s=ADMIN_PATIENCE_S)
    if cut:
        logger.warning("answers cut: %d", cut)
    return 1 if cut else 0


async def _administer(options: Options, child: Child) -> int:
    stop, _ = _stop_events(child)
    handler = SeveralHandler(child.admin_sockets, token=options.admin_token)
    admin = Server(handler, loop=asyncio.get_running_loop(), limits=HttpLimits())
    await admin.start(options.admin_host, options.admin_port)
    logger.info("admin port host=%s port=%d", options.admin_host, admin.port)
    await stop.wait()
    await admin.stop(patience_s=ADMIN_PATIENCE_S)
    return 0


def _stop_events(child: Child | None) -> tuple[asyncio.Event, asyncio.Event]:
    """Return an event that is set by SIGTERM, by SIGINT, and by the end of the process that forked this one; and one
    that is set by a second signal, which means that answers under way are to be cut."""
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    # One handler for both: between two of them a signal would end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if child is not None:
        lifeline = child.lifeline

        def on_end() -> None:
            loop.remove_reader(lifeline)
            stop.set()

        loop.add_reader(lifeline, on_end)
    return stop, hurry
