"""What was learned, for people and for scripts."""
