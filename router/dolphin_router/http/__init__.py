"""HTTP/1.1 over raw asyncio protocols: the server's side, the workers' side, and what both need."""
