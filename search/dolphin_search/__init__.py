"""Learning: from a history of requests to clusters, from clusters to a table, and tables against the usual rules."""
