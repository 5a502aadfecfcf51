"""Agent traffic: tool loops that append short results to a long prefix and answer with short calls."""

from __future__ import annotations

from dolphin_sim.workloads.arrivals import ArrivalKind
from dolphin_sim.workloads.lengths import Counts, LogNormal, Mixture
from dolphin_sim.workloads.sessions import SessionShape, SessionWorkload

# All our choice; for comparison, a published trace of tool users has 8,596 tokens in and 182 out on average. The
# system prompts hold the descriptions of the tools. Four answers in five are calls of a tool. Prompts stay below
# 120,000 tokens.
SHAPE = SessionShape(
    turns=Counts(12.0, most=30),
    system_tokens=(6000, 4000, 8000, 5000),
    first_turns=LogNormal(500, sigma=1.0, low=16, high=6000),
    later_turns=LogNormal(350, sigma=1.0, low=8, high=2000),
    answers=Mixture(
        LogNormal(80, sigma=0.5, low=8, high=400), LogNormal(500, sigma=0.6, low=32, high=1500), second_share=0.2
    ),
    pauses_s=LogNormal(4, sigma=1.0, low=0.2, high=60),
    limit_share=0.4,
    tools_share=0.97,
    json_share=0.2,
)


def agent_workload(*, arrival: ArrivalKind = "poisson") -> SessionWorkload:
    """Loops of 12 steps on average, about 7 s apart."""
    return SessionWorkload(name="agent", arrival=arrival, shape=SHAPE)
