"""What a router is at the moment of a scrape: requests under way, workers, caches, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol, get_args

from dolphin_router.exchange.admission import Admission
from dolphin_router.exchange.kv_arrivals import KvArrivals
from dolphin_router.fleet import Fleet
from dolphin_router.kv_events.event_index import EventIndex
from dolphin_router.prefix_index import PrefixIndex
from dolphin_router.routing import ActiveTable
from dolphin_router.shadow import ShadowComparison
from dolphin_router.worker import WorkerRole

from .families import Family, Sample

_ROLES = get_args(WorkerRole)


class Reloads(Protocol):
    """How often something was taken over, and how often it could not be used."""

    accepted: int
    refused: int


def admission_families(admission: Admission) -> Iterator[Family]:
    """Yield how many requests are under way."""
    yield _gauge("dolphin_requests_in_flight", "Requests that are being worked on.", admission.taken)
    yield _gauge("dolphin_requests_waiting", "Requests that wait for their turn.", admission.waiting)


def arrival_families(arrivals: KvArrivals) -> Iterator[Family]:
    """Yield what came of the notices that KV caches have arrived."""
    yield _gauge("dolphin_kv_arrivals_awaited", "KV caches that are on their way to a decode worker.", len(arrivals))
    yield Family(
        "dolphin_kv_notices_total",
        "counter",
        "Notices that a KV cache has arrived: taken, of none that is awaited, or no notice at all.",
        [
            Sample((("what", what),), count)
            for what, count in (
                ("taken", arrivals.taken),
                ("unknown", arrivals.unknown),
                ("malformed", arrivals.malformed),
            )
        ],
    )


def fleet_families(fleet: Fleet) -> Iterator[Family]:
    """Yield what each worker has been given to do by this router and has not finished."""
    ready = Counter(state.worker.role for state in fleet.workers if state.is_ready)
    yield Family(
        "dolphin_workers_ready",
        "gauge",
        "Workers that may get requests.",
        [Sample((("role", role),), ready[role]) for role in _ROLES],
    )
    states = [(state, (("worker", state.worker.name), ("role", state.worker.role))) for state in fleet.workers]
    yield Family(
        "dolphin_worker_open_requests",
        "gauge",
        "Requests that a worker has not finished.",
        [Sample(labels, state.open_requests) for state, labels in states],
    )
    yield Family(
        "dolphin_worker_queue_tokens",
        "gauge",
        "Prompt tokens that a worker was given to compute and has not answered for.",
        [Sample(labels, state.queue_tokens) for state, labels in states],
    )


def cache_families(history: PrefixIndex, events: EventIndex) -> Iterator[Family]:
    """Yield what is known of the workers' prefix caches."""
    yield _gauge("dolphin_prefix_index_blocks", "Blocks of prompts that the router remembers.", len(history))
    counters = events.counters
    yield Family(
        "dolphin_kv_events_total",
        "counter",
        "What happened on the way of KV events.",
        [
            Sample((("what", what),), count)
            for what, count in (
                ("messages", counters.messages),
                ("events", counters.events),
                ("decode_errors", counters.decode_errors),
                ("unplaced_blocks", counters.unplaced_blocks),
                ("gaps", counters.gaps),
                ("replays", counters.replays),
                ("restarts", counters.restarts),
                ("forgets", counters.forgets),
            )
        ],
    )
    yield _gauge(
        "dolphin_kv_events_silent_workers",
        "Workers that should publish KV events and have not; their caches look empty.",
        len(events.without_events()),
    )


def table_families(active: ActiveTable | None, shadow: ActiveTable | None) -> Iterator[Family]:
    """Yield which tables are in use; no sample where there is none."""
    for name, which, table in (
        ("dolphin_table_info", "The table in use.", active),
        ("dolphin_shadow_table_info", "The table that decides without acting.", shadow),
    ):
        samples = []
        if table is not None:
            labels = (("digest", table.table.digest), ("split", str(table.table.split)))
            samples.append(Sample(labels, 1))
        yield Family(name, "gauge", which, samples)


def shadow_families(comparison: ShadowComparison) -> Iterator[Family]:
    """Yield how the shadow table would have decided."""
    yield Family(
        "dolphin_shadow_decisions_total",
        "counter",
        "Requests by what the table in use and the shadow table decided.",
        [
            Sample((("active", active.text), ("shadow", shadow.text)), count)
            for (active, shadow), count in sorted(comparison.decisions.items())
        ],
    )
    yield Family(
        "dolphin_shadow_cluster_decisions",
        "gauge",
        "Requests by the present shadow table's cluster and by whether both tables decided alike.",
        [
            Sample((("cluster", str(cluster)), ("result", result)), count)
            for result, counts in (("same", comparison.agreements), ("other", comparison.disagreements))
            for cluster, count in sorted(counts.items())
        ],
    )


def reload_families(reloads: Mapping[str, Reloads]) -> Iterator[Family]:
    """Yield how often new tables or configurations came, by what it was."""
    yield Family(
        "dolphin_reloads_total",
        "counter",
        "New tables and configurations that were taken over or refused; the log says why.",
        [
            Sample((("what", what), ("result", result)), count)
            for what, counts in reloads.items()
            for result, count in (("accepted", counts.accepted), ("refused", counts.refused))
        ],
    )


def _gauge(name: str, help_text: str, value: float) -> Family:
    return Family(name, "gauge", help_text, [Sample((), value)])
