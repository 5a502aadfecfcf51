"""What engines say of themselves."""

from __future__ import annotations

import msgspec


class AtomTransferInfo(msgspec.Struct):
    """Answer of ATOM to ``GET /kv_transfer_info``."""

    tp_size: int
    kv_role: str
    dp_size: int = 1


class MooncakeRank(msgspec.Struct):
    """What Mooncake says of one data-parallel rank in answer to ``GET /query``."""

    engine_id: str


class LmcacheNotice(msgspec.Struct, tag="ProxyNotif"):
    """LMCache's message that a KV cache has arrived."""

    req_id: str
