"""What a router process is told once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """Addresses, keys and numbers of processes."""

    host: str = "0.0.0.0"
    port: int = 8080
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    admin_host: str = "127.0.0.1"
    admin_port: int = 9090
    admin_token: bytes | None = field(default=None, repr=False)
    """Asked of whoever uses the admin port; none only where it listens on loopback."""
    secret: bytes = field(default=b"", repr=False)
    """Keys the hashes of recorded prompts; the same for all routers of a policy, so that their records fit together."""
    processes: int = 1
    recorder_bytes: int = 16 << 20
    patience_s: float = 30.0
    """How long answers that are under way may take when the router is asked to stop."""
