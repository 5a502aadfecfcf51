"""A simulated cluster of prefill and decode workers: workloads, one engine model, and its virtual-time driver."""
