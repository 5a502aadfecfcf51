"""What the router tells Prometheus.

Requests are counted in plain Python numbers; everything that takes time waits for a scrape.
"""

from .families import Family, Sample, render
from .merging import merge
from .router_metrics import RouterMetrics
from .state_families import (
    admission_families,
    arrival_families,
    cache_families,
    fleet_families,
    reload_families,
    shadow_families,
    table_families,
)

__all__ = [
    "Family",
    "RouterMetrics",
    "Sample",
    "admission_families",
    "arrival_families",
    "cache_families",
    "fleet_families",
    "merge",
    "reload_families",
    "render",
    "shadow_families",
    "table_families",
]
