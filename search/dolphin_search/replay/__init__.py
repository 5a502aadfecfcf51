"""Sending a workload's requests to a real address, when they are due, and measuring the answers at the socket."""
