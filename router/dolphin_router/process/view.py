"""What a router shows on its admin port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dolphin_router.contract import RoutingTable
from dolphin_router.metrics import (
    Family,
    admission_families,
    arrival_families,
    cache_families,
    fleet_families,
    reload_families,
    render,
    shadow_families,
    table_families,
)

from .router import Router


class View:
    """One router, for :class:`dolphin_router.admin.handler.AdminHandler`."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def metrics(self) -> Iterator[bytes]:
        """Yield the metrics in Prometheus's text format, family by family."""
        return render(self._families())

    def _families(self) -> Iterator[Family]:
        router, plane = self._router, self._router.plane
        yield from router.metrics.families()
        yield from admission_families(plane.admission)
        yield from fleet_families(router.fleet)
        yield from cache_families(router.history, router.events)
        if plane.arrivals is not None:
            yield from arrival_families(plane.arrivals)
        yield from table_families(plane.active, plane.shadow)
        yield from shadow_families(plane.shadow_comparison)
        yield from reload_families(
            {"table": router.table_reloads, "shadow_table": router.shadow_reloads, "config": router.config_reloads}
        )

    def recorded(self) -> Iterator[bytes]:
        """Yield the recorded requests as lines of JSON, the oldest first."""
        return self._router.recorder.lines()

    def table(self) -> RoutingTable | None:
        """Return the table in use."""
        active = self._router.plane.active
        return None if active is None else active.table

    def status(self) -> Mapping[str, Any]:
        """Return workers, table and reloads as a person wants to see them."""
        router = self._router
        plane = router.plane
        return {
            "engine": router.adapter.name,
            "workers": [
                {
                    "name": state.name,
                    "role": state.worker.role,
                    "ready": state.is_ready,
                    "open_requests": state.open_requests,
                    "running_decodes": state.running_decodes,
                    "queue_tokens": state.queue_tokens,
                    "context_tokens": state.context_tokens,
                }
                for state in router.fleet.workers
            ],
            "requests": {"admitted": plane.admission.taken, "waiting": plane.admission.waiting},
            "table": _table_status(self.table(), router.table_reloads.last_refusal),
            "shadow_table": _table_status(
                None if plane.shadow is None else plane.shadow.table, router.shadow_reloads.last_refusal
            ),
            "draining": plane.is_draining,
            "remarks": router.remarks(),
        }


def _table_status(table: RoutingTable | None, last_refusal: str | None) -> Mapping[str, Any]:
    return {
        "digest": None if table is None else table.digest,
        "split": None if table is None else str(table.split),
        "refused": last_refusal,
    }
