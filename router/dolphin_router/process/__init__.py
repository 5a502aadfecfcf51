"""The router as a process: assembled from a configuration, started, reconfigured, stopped."""
