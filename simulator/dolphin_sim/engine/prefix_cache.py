"""A worker's prefix cache: blocks by their chained identity, counted references, least recently used first out.

One ``BlockCache`` holds the caches of all workers, a row each: a hash table with chaining over a fixed pool of
entries. Entries without references form a doubly linked list from the oldest to the newest; only they can be evicted.
The blocks of a request are let go last to first, so that a chain is evicted from its tail and what remains is always a
prefix.
"""

from __future__ import annotations

import numpy as np

from dolphin_sim.compiled import compiled, compiled_inside
from dolphin_sim.engine.state import NONE, BlockCache

ENTRY = np.dtype(
    [
        ("block", np.int64),
        ("references", np.int32),
        ("chained", np.int32),
        ("older", np.int32),
        ("newer", np.int32),
    ]
)

ROW = np.dtype(
    [
        ("oldest", np.int64),
        ("newest", np.int64),
        ("free", np.int64),
        ("untouched", np.int64),  # entries from here on were never used
        ("resident", np.int64),
        ("idle", np.int64),  # resident without references
    ]
)


def empty_cache(workers: int, entries: int) -> BlockCache:
    """Return caches of ``workers`` workers with room for ``entries`` blocks each, with nothing in them."""
    buckets = 1 << max(4, (2 * entries - 1).bit_length())
    rows = np.zeros(workers, dtype=ROW).view(np.recarray)
    rows["oldest"] = rows["newest"] = rows["free"] = NONE
    return BlockCache(
        bucket=np.full((workers, buckets), NONE, dtype=np.int32),
        entries=np.zeros((workers, max(entries, 1)), dtype=ENTRY).view(np.recarray),
        rows=rows,
    )


@compiled
def find(cache: BlockCache, worker: int, block: int) -> int:
    """Return the entry that holds ``block``, or ``NONE``."""
    # Identities are dense, so their low bits spread well, and neighbours in a chain are neighbours in memory.
    entry = np.int64(cache.bucket[worker, block & (cache.bucket.shape[1] - 1)])
    while entry != NONE and cache.entries[worker, entry].block != block:
        entry = np.int64(cache.entries[worker, entry].chained)
    return int(entry)


@compiled
def hold(cache: BlockCache, worker: int, entry: int) -> None:
    """Add a reference, so that the entry stays."""
    if cache.entries[worker, entry].references == 0:
        _unlink(cache, worker, entry)
        cache.rows[worker].idle -= 1
    cache.entries[worker, entry].references += 1


@compiled
def let_go(cache: BlockCache, worker: int, entry: int) -> None:
    """Take a reference away; without any the entry becomes the newest of those that may be evicted."""
    cache.entries[worker, entry].references -= 1
    if cache.entries[worker, entry].references == 0:
        _append(cache, worker, entry)
        cache.rows[worker].idle += 1


@compiled
def insert(cache: BlockCache, worker: int, block: int) -> int:
    """Add a block that is not there, with one reference, and return its entry. There must be room."""
    row = cache.rows[worker]
    place = row.free
    if place != NONE:
        row.free = cache.entries[worker, place].chained
    else:
        place = row.untouched
        row.untouched += 1
    entry = cache.entries[worker, place]
    bucket = block & (cache.bucket.shape[1] - 1)
    entry.block = block
    entry.references = 1
    entry.chained = cache.bucket[worker, bucket]
    cache.bucket[worker, bucket] = place
    row.resident += 1
    return int(place)


@compiled
def evict_oldest(cache: BlockCache, worker: int) -> int:
    """Remove the oldest entry without references and return its block. There must be one."""
    row = cache.rows[worker]
    place = row.oldest
    _unlink(cache, worker, place)
    entry = cache.entries[worker, place]
    block = entry.block
    bucket = block & (cache.bucket.shape[1] - 1)
    before = cache.bucket[worker, bucket]
    if before == place:
        cache.bucket[worker, bucket] = entry.chained
    else:
        while cache.entries[worker, before].chained != place:
            before = cache.entries[worker, before].chained
        cache.entries[worker, before].chained = entry.chained
    entry.chained = row.free
    row.free = place
    row.resident -= 1
    row.idle -= 1
    return int(block)


@compiled
def remember(cache: BlockCache, worker: int, block: int) -> None:
    """Keep a block without reference, as the newest; the oldest makes room."""
    entry = find(cache, worker, block)
    if entry != NONE:
        _unlink(cache, worker, entry)
        _append(cache, worker, entry)
        return
    if cache.rows[worker].resident == cache.entries.shape[1]:
        evict_oldest(cache, worker)
    let_go(cache, worker, insert(cache, worker, block))


@compiled_inside
def _unlink(cache: BlockCache, worker: int, place: int) -> None:
    older = cache.entries[worker, place].older
    newer = cache.entries[worker, place].newer
    if older == NONE:
        cache.rows[worker].oldest = newer
    else:
        cache.entries[worker, older].newer = newer
    if newer == NONE:
        cache.rows[worker].newest = older
    else:
        cache.entries[worker, newer].older = older


@compiled_inside
def _append(cache: BlockCache, worker: int, place: int) -> None:
    newest = cache.rows[worker].newest
    cache.entries[worker, place].older = newest
    cache.entries[worker, place].newer = NONE
    if newest == NONE:
        cache.rows[worker].oldest = place
    else:
        cache.entries[worker, newest].newer = place
    cache.rows[worker].newest = place
