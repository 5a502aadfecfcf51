"""What to measure next: one sampler a file."""

from __future__ import annotations

from dolphin_search.samplers.base import Round, Sampler
from dolphin_search.samplers.rewards import REWARDS, RewardName
from dolphin_search.samplers.scan_then_epsilon_greedy import ScanThenEpsilonGreedy

__all__ = ["REWARDS", "RewardName", "Round", "Sampler", "ScanThenEpsilonGreedy"]
