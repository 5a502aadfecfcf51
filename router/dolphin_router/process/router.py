"""One router: its parts put together, kept in step with its configuration."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from dolphin_router.adapters import adapter_named
from dolphin_router.contract import DocumentError, RouterConfig, RoutingTable
from dolphin_router.data_plane import DataPlane
from dolphin_router.decision import Action
from dolphin_router.exchange.kv_arrivals import KvArrivals
from dolphin_router.fleet import Fleet
from dolphin_router.http.limits import HttpLimits
from dolphin_router.kv_events.event_index import EventIndex
from dolphin_router.kv_events.subscriptions import EventSubscriptions
from dolphin_router.metrics import RouterMetrics
from dolphin_router.output_inputs import OutputInputsReader
from dolphin_router.prefix_index import CacheView, PrefixIndex
from dolphin_router.probes import Prober
from dolphin_router.prompt_reader import PromptReader
from dolphin_router.recorder import Recorder
from dolphin_router.request_record import RequestRecord
from dolphin_router.routing import ActiveTable, RoutingRules
from dolphin_router.server import Server
from dolphin_router.sources.config_file import load_config, workers_of
from dolphin_router.sources.file_watch import FileWatch
from dolphin_router.token_count import TokenCounter

from .notice_receiver import NoticeReceiver
from .options import Options
from .reloads import Reloads
from .remarks import remarks
from .table_file import TableFile, why_impossible

logger = logging.getLogger(__name__)

CACHED_TOKENS = 262_144
"""Prompt tokens that a worker's prefix cache is taken to hold unless the configuration says otherwise."""


class Router:
    """Answers clients. Made within a running event loop."""

    def __init__(self, config: RouterConfig, options: Options, *, config_path: Path | None = None) -> None:
        """Put the parts together; nothing listens yet.

        Args:
            config: what to do.
            options: addresses and keys.
            config_path: the file that the configuration came from, to be watched; none when it came from flags.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._options = options
        self._config_path = config_path
        self.adapter = adapter_named(config.engine)
        self.metrics = RouterMetrics(engine=config.engine)
        self.recorder = Recorder(secret=options.secret, most_bytes=options.recorder_bytes)
        self.table_reloads = Reloads()
        self.shadow_reloads = Reloads()
        self.config_reloads = Reloads()
        self.fleet = Fleet(loop, connect_timeout_s=config.timeouts.connect_s)
        self.history = PrefixIndex(capacity_tokens=config.cached_tokens or CACHED_TOKENS)
        self.events = EventIndex(speculative_s=config.kv_events_wait_s)
        self._subscriptions: EventSubscriptions | None = None
        self._cache_view = CacheView(self.history, self.events)
        self.prober = Prober(self.fleet, self.adapter, on_return=self._cache_view.forget)
        self.server = Server(self, loop=loop, limits=HttpLimits(body_bytes=config.limits.body_bytes))
        self.plane = DataPlane(
            loop=loop,
            fleet=self.fleet,
            adapter=self.adapter,
            prompts=PromptReader(
                counter=TokenCounter(),
                view=self._cache_view,
                outputs=OutputInputsReader(key=options.secret),
                clock=loop.time,
                has_events=lambda: self._subscriptions is not None,
            ),
            observer=self,
            config=config,
            rules=rules_of(config),
            deadlines=self.server.deadlines,
            suspicion=self.prober,
            arrivals=None if config.notice_endpoint is None else KvArrivals(),
        )
        self._notices: NoticeReceiver | None = None
        self._tables: dict[str, tuple[str, TableFile]] = {}
        self._has_aggregated = False
        self._config_watch: FileWatch | None = None
        self.handle = self.plane.handle

    @property
    def config(self) -> RouterConfig:
        """The configuration in use."""
        return self.plane.config

    async def start(self) -> None:
        """Load the tables, look for workers, listen.

        Raises:
            DocumentError: a table cannot be used.
            OSError: the address or the certificate cannot be used.
        """
        self._apply_tables(self.config)
        self._apply_workers(self.config)
        self._remark()
        tls = None
        if self._options.tls_certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(self._options.tls_certificate, self._options.tls_key)
        if self.plane.arrivals is not None and self.config.notice_endpoint is not None:
            self._notices = NoticeReceiver(
                self.config.notice_endpoint, adapter=self.adapter, arrivals=self.plane.arrivals
            )
        await self.server.start(
            self._options.host, self._options.port, tls=tls, shares_port=self._options.processes > 1
        )
        if self._config_path is not None:
            self._config_watch = FileWatch(self._config_path, self._reload_config)

    async def stop(self, *, hurry: asyncio.Event | None = None) -> int:
        """Finish what is under way, then close everything. Return how many answers were cut.

        When ``hurry`` is set, what is still under way is cut at once.
        """
        self.plane.is_draining = True
        cut = await self.server.stop(patience_s=self._options.patience_s, hurry=hurry)
        if self._config_watch is not None:
            self._config_watch.close()
        for _, table_file in self._tables.values():
            table_file.close()
        self.prober.close()
        if self._subscriptions is not None:
            await self._subscriptions.close()
        if self._notices is not None:
            await self._notices.close()
        self.fleet.close()
        return cut

    def apply(self, config: RouterConfig) -> None:
        """Take a new configuration over. What is under way goes on as it began.

        Raises:
            DocumentError: it cannot be used; the old one stays.
        """
        for name in ("engine", "cached_tokens", "kv_events_wait_s", "notice_endpoint"):
            if getattr(config, name) != getattr(self.config, name):
                raise DocumentError(
                    source=str(self._config_path or "configuration"),
                    field=name,
                    problem="cannot change while the router runs",
                    remedy="restart the router",
                )
        self._apply_tables(config)
        self.plane.config = config
        self.plane.rules = rules_of(config)
        self.plane.admission.change(
            places=config.limits.concurrent_requests, waiting_places=config.limits.waiting_requests
        )
        self.server.limits = HttpLimits(body_bytes=config.limits.body_bytes)
        self._apply_workers(config)

    # What is worth counting

    def decided(self, seconds: float) -> None:
        """Count a decision."""
        self.metrics.decided(seconds)

    def refused(self, reason: str) -> None:
        """Count an answer of our own."""
        self.metrics.refused(reason)

    def stranded_lease(self, phase: str) -> None:
        """Count a KV cache that is left to its lease."""
        self.metrics.stranded_lease(phase)

    def finished(self, record: RequestRecord) -> None:
        """Count and record a request that is over."""
        if record.outcome == "failed":
            logger.warning(
                "request failed path=%s status=%s prefill=%s decode=%s reason=%s",
                record.path,
                record.status,
                record.prefill_worker,
                record.decode_worker,
                "; ".join(record.errors),
            )
        self.metrics.finished(record)
        self.recorder.finished(record, b"" if record.prompt is None else memoryview(record.prompt))

    # Keeping in step

    def remarks(self) -> list[str]:
        """Return what is odd about the configuration and the table in use."""
        active = self.plane.active
        return list(remarks(self.config, None if active is None else active.table))

    def _remark(self) -> None:
        for remark in self.remarks():
            logger.warning("%s", remark)

    def _reload_config(self) -> None:
        assert self._config_path is not None
        try:
            self.apply(load_config(self._config_path))
        except DocumentError as error:
            self.config_reloads.refused += 1
            self.config_reloads.last_refusal = str(error)
            logger.error("configuration refused, the one in use stays: %s", error)
        else:
            self._remark()
            self.config_reloads.accepted += 1
            self.config_reloads.last_refusal = None
            logger.info("configuration in use path=%s workers=%d", self._config_path, len(self.fleet.workers))

    def _apply_workers(self, config: RouterConfig) -> None:
        workers = tuple(workers_of(config))
        before = {state.name for state in self.fleet.workers}
        self.fleet.update(workers)
        self.prober.follow()
        for name in before - {worker.name for worker in workers}:
            self._cache_view.forget(name)
        self.metrics.forget_workers_except(worker.name for worker in workers)
        if self._subscriptions is None and any(worker.kv_events_endpoint for worker in workers):
            self._subscriptions = EventSubscriptions(self.events)
        if self._subscriptions is not None:
            self._subscriptions.follow(workers)

    def _apply_tables(self, config: RouterConfig) -> None:
        def assign_active(active: ActiveTable | None) -> None:
            self.plane.active = active
            self.metrics.use_slo(None if active is None else active.table.slo)

        def assign_shadow(shadow: ActiveTable | None) -> None:
            self.plane.shadow = shadow

        self._has_aggregated = bool(config.workers.aggregated)
        self._apply_table("table", config.table, assign_active, self.table_reloads, self._remark)
        self._apply_table("shadow_table", config.shadow_table, assign_shadow, self.shadow_reloads, lambda: None)

    def _why_impossible(self, table: RoutingTable) -> str | None:
        return why_impossible(table, self.adapter, has_aggregated=self._has_aggregated)

    def _apply_table(
        self,
        slot: str,
        path: str | None,
        assign: Callable[[ActiveTable | None], None],
        reloads: Reloads,
        on_change: Callable[[], None],
    ) -> None:
        old_path, old = self._tables.get(slot, (None, None))
        if path == old_path:
            return
        if path is not None:
            new = TableFile(
                Path(path),
                name=slot.replace("_", " "),
                assign=assign,
                check=self._why_impossible,
                reloads=reloads,
                on_change=on_change,
            )
            self._tables[slot] = (path, new)
        else:
            assign(None)
            del self._tables[slot]
        if old is not None:
            old.close()


def rules_of(config: RouterConfig) -> RoutingRules:
    """Return the guards' settings."""
    return RoutingRules(
        fallback_action=Action.from_text(config.fallback_action),
        local_without_prefill_worker=config.on_no_prefill_worker == "local",
    )
