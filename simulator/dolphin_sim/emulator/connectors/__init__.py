"""How workers of one kind of engine hand over KV caches: one small class each."""
