"""The engine model: one continuous-batching worker, many of them on links, and the event loop in virtual time.

All functions here work on the arrays of :mod:`dolphin_sim.engine.state` and are compiled. A worker is a row index:
prefill workers come first (``0 .. prefill_workers - 1``), decode workers after them. A request is an index into the
request arrays; ``NONE`` stands for no request, no entry, no worker.
"""
