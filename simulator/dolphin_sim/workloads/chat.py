"""Chat traffic: people who talk to an assistant over several turns, behind a few shared system prompts."""

from __future__ import annotations

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.lengths import Counts, LogNormal
from dolphin_sim.workloads.sessions import SessionShape, SessionWorkload

# All our choice. Prompts stay below 85,000 tokens.
SHAPE = SessionShape(
    turns=Counts(5.0, most=20),
    system_tokens=(640, 320, 1100, 480, 1600, 200, 850, 1280),
    first_turns=LogNormal(250, sigma=1.2, low=4, high=4000),
    later_turns=LogNormal(120, sigma=1.0, low=4, high=2000),
    answers=LogNormal(250, sigma=0.8, low=4, high=2000),
    pauses_s=LogNormal(45, sigma=0.8, low=2, high=300),
    limit_share=0.2,
    tools_share=0.05,
    json_share=0.03,
)


def chat_workload(*, arrival: ArrivalKind = "poisson") -> SessionWorkload:
    """Conversations of 5 turns on average, about a minute apart."""
    return SessionWorkload(name="chat", arrival=arrival, shape=SHAPE)
