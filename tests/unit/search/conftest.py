"""Episodes made by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dolphin_sim.episode import Episode
from dolphin_sim.workloads import Requests


@pytest.fixture(scope="session")
def whole_episode() -> Callable[[Requests], Episode]:
    """A function that makes an episode of which every request counts."""
    return lambda requests: Episode(requests, np.zeros(len(requests)), np.ones(len(requests), dtype=np.bool_), 0)
