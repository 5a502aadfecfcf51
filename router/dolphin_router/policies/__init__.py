"""The deciding side of each policy class that a table can hold."""

from __future__ import annotations

from .base import Policy, policy_from_table

__all__ = ["Policy", "policy_from_table"]
