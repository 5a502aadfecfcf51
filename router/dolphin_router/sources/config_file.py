"""The router's configuration from a file of YAML or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from dolphin_router.adapters.vllm_lmcache import ALLOC_PORTS, INIT_PORTS
from dolphin_router.contract import DocumentError, RouterConfig, WorkerAddress, read_document
from dolphin_router.worker import Worker, WorkerRole

_ROLES: tuple[WorkerRole, ...] = ("prefill", "decode", "aggregated")


def load_config(path: Path) -> RouterConfig:
    """Return the configuration in a file. Paths in it start at the file's folder.

    Raises:
        DocumentError: the file cannot be read, or is not such a configuration; the message says what to do.
    """
    source = str(path)
    try:
        content = yaml.safe_load(path.read_bytes())
        document = json.dumps(content)
    except OSError as error:
        raise DocumentError(
            source=source, field="", problem=f"cannot be read: {error.strerror}", remedy="check the path"
        ) from error
    except (yaml.YAMLError, UnicodeError, TypeError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise DocumentError(
            source=source, field="", problem=f"is not YAML or JSON: {problem}", remedy="correct it"
        ) from error
    config = read_document(RouterConfig, document, source=source)
    tables = {name: _resolved(path, getattr(config, name)) for name in ("table", "shadow_table")}
    return config.model_copy(update=tables)


def workers_of(config: RouterConfig) -> Iterator[Worker]:
    """Yield the configuration's workers."""
    for role in _ROLES:
        for address in getattr(config.workers, role):
            yield worker_at(address, role)


def worker_at(address: WorkerAddress, role: WorkerRole) -> Worker:
    """Return the worker at an address."""
    facts: dict[str, object] = {}
    if address.lmcache_init_ports is not None:
        facts[INIT_PORTS] = address.lmcache_init_ports
    if address.lmcache_alloc_ports is not None:
        facts[ALLOC_PORTS] = address.lmcache_alloc_ports
    return Worker(
        role=role,
        host=address.host,
        port=address.port,
        bootstrap_port=address.bootstrap_port,
        kv_events_endpoint=address.kv_events,
        kv_replay_endpoint=address.kv_replay,
        facts=facts,
    )


def _resolved(path: Path, name: str | None) -> str | None:
    return None if name is None else str(path.parent / name)
