"""The command ``dolphin-sim``."""
