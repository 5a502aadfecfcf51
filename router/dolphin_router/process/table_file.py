"""A routing table from a file, swapped in when the file changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dolphin_router.adapters.base import EngineAdapter
from dolphin_router.contract import DocumentError, RoutingTable, load_table
from dolphin_router.routing import ActiveTable
from dolphin_router.sources.file_watch import FileWatch

from .reloads import Reloads

logger = logging.getLogger(__name__)


def why_impossible(table: RoutingTable, adapter: EngineAdapter, *, has_aggregated: bool) -> str | None:
    """Return why an engine cannot do what a table says; none when it can."""
    if adapter.decode_worker_prefills or has_aggregated:
        return None
    if all(cluster.action == "remote" for cluster in table.decider.clusters):
        return None
    return (
        f"it has clusters with local prefill, which decode workers of {adapter.name} cannot do; "
        "name aggregated workers, or learn a table without local prefill"
    )


class TableFile:
    """Keeps one slot, the active table's or the shadow's, at what a file says. A file that cannot be used changes
    nothing."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        assign: Callable[[ActiveTable], None],
        check: Callable[[RoutingTable], str | None],
        reloads: Reloads,
        on_change: Callable[[], None],
    ) -> None:
        """Load the file and watch it. Needs a running event loop.

        Args:
            path: of the table.
            name: of the slot, for people.
            assign: takes a table over.
            check: says why a valid table cannot be used here; none when it can.
            reloads: counts.
            on_change: called when another table has been taken over from the file.

        Raises:
            DocumentError: the file does not hold a table that can be used.
        """
        self._path = path
        self._name = name
        self._assign = assign
        self._check = check
        self._reloads = reloads
        self._on_change = on_change
        self._load()
        self._watch = FileWatch(path, self._reload)

    def close(self) -> None:
        """Stop watching. The table stays in use."""
        self._watch.close()

    def _load(self) -> None:
        table = load_table(self._path)
        problem = self._check(table)
        if problem is not None:
            raise DocumentError(source=str(self._path), field="", problem="cannot be used here", remedy=problem)
        self._assign(ActiveTable.from_table(table))
        self._reloads.accepted += 1
        self._reloads.last_refusal = None
        logger.info("%s in use path=%s split=%s digest=%s", self._name, self._path, table.split, table.digest)

    def _reload(self) -> None:
        try:
            self._load()
        except DocumentError as error:
            self._reloads.refused += 1
            self._reloads.last_refusal = str(error)
            logger.error("%s refused, the one in use stays: %s", self._name, error)
        else:
            self._on_change()
