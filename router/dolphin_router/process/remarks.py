"""What is odd about a configuration that can be used: said once, since it may be meant so."""

from __future__ import annotations

from collections.abc import Iterator

from dolphin_router.contract import RouterConfig, RoutingTable, Split


def remarks(config: RouterConfig, table: RoutingTable | None) -> Iterator[str]:
    """Yield a sentence for everything that a person would probably want to know."""
    workers = config.workers
    if table is None:
        yield f"there is no table: every request goes the fallback's way, which is {config.fallback_action}"
    if not workers.prefill:
        yield "no prefill worker is named: every prefill is local"
    for role, addresses in (("decode", workers.decode), ("aggregated", workers.aggregated)):
        shared = {address.url for address in addresses} & {address.url for address in workers.prefill}
        for url in sorted(shared):
            yield f"{url} is named as a prefill and as a {role} worker"
    if table is not None and workers.prefill and workers.decode:
        named = Split(prefill=len(workers.prefill), decode=len(workers.decode))
        if table.split != named:
            yield f"the table was learned for {table.split}, but {named} are named: it may be worse than none"
