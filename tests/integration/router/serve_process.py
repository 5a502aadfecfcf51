"""``dolphin-router serve`` as a process of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

COMMAND = (sys.executable, "-c", "import sys; from dolphin_router.cli import main; sys.exit(main())")
_LISTENING = re.compile(r" listening host=\S+ port=(\d+)")
_ADMIN = re.compile(r" admin port host=\S+ port=(\d+)")


@dataclass
class Serving:
    """A router process and what it has said."""

    process: asyncio.subprocess.Process
    log: list[str]
    port: int = 0
    admin_port: int = 0

    async def wait_for(self, pattern: str, *, count: int = 1, limit_s: float = 20.0) -> None:
        """Wait until ``count`` lines of the log match."""
        async with asyncio.timeout(limit_s):
            while sum(bool(re.search(pattern, line)) for line in self.log) < count:
                assert self.process.returncode is None, "".join(self.log)
                await asyncio.sleep(0.01)

    async def end(self, *, limit_s: float = 20.0) -> int:
        """Wait for the end and return the exit code."""
        async with asyncio.timeout(limit_s):
            return await self.process.wait()


@asynccontextmanager
async def serving(*arguments: str, workers: Sequence[str] = (), processes: int = 1) -> AsyncIterator[Serving]:
    """Run the command on free ports until its workers are ready; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--workers", str(processes)),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
    )
    router = Serving(process, [])
    reading = asyncio.ensure_future(_read(router))
    try:
        await router.wait_for("listening", count=processes)
        await router.wait_for("admin port")
        for worker in workers:
            await router.wait_for(f"worker ready worker={re.escape(worker.removeprefix('http://'))} ", count=processes)
        for line in router.log:
            if found := _LISTENING.search(line):
                router.port = int(found[1])
            if found := _ADMIN.search(line):
                router.admin_port = int(found[1])
        yield router
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read(router: Serving) -> None:
    assert router.process.stderr is not None
    async for line in router.process.stderr:
        router.log.append(line.decode())


async def run_to_end(*arguments: str) -> tuple[int, str]:
    """Run a command that ends by itself, and return its exit code and what it wrote to the standard error."""
    process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30.0):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, errors.decode()
