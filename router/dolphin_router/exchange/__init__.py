"""What happens to one request between its arrival and the last byte of its answer."""
