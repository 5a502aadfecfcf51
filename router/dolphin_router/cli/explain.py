"""Say which cluster a request belongs to, what is decided, and why."""

from __future__ import annotations

import argparse
import json

from dolphin_router.contract import RoutingTable, load_table
from dolphin_router.explanation import Explanation, explain, explanation_json
from dolphin_router.features import Features, effective_tokens
from dolphin_router.gain import measured_gain
from dolphin_router.load import IDLE

from .arguments import token_count
from .wording import columns, facts, gain_text, tokens, uncertain

NAME = "explain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="the routing table")
    for option, text in (
        ("--prompt-tokens", "length of the prompt"),
        ("--prefill-cached", "prompt tokens that the candidate prefill worker has cached"),
        ("--decode-cached", "prompt tokens that the candidate decode worker has cached"),
        ("--output-tokens", "expected length of the answer"),
    ):
        cached = option.endswith("cached")
        suffix = "; 0 unless given" if cached else ""
        parser.add_argument(
            option, metavar="N", type=token_count, required=not cached, default=0, help=f"{text}{suffix}"
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    prompt_tokens = arguments.prompt_tokens
    for option in ("prefill_cached", "decode_cached"):
        cached = getattr(arguments, option)
        if cached > prompt_tokens:
            name = f"--{option.replace('_', '-')}"
            arguments.refuse(f"argument {name}: {cached} is more than the {prompt_tokens} tokens of the prompt")
    features = Features(
        prompt_tokens,
        effective_tokens(prompt_tokens, arguments.prefill_cached),
        effective_tokens(prompt_tokens, arguments.decode_cached),
        arguments.output_tokens,
    )
    table = load_table(arguments.file)
    explanation = explain(table, features, IDLE)
    if arguments.json:
        print(json.dumps(explanation_json(table, explanation), indent=2))
    else:
        print(f"{_summary(table, explanation)}\n\n{_gaps(explanation)}")
    return 0


def _summary(table: RoutingTable, explanation: Explanation) -> str:
    return facts(
        [
            ("cluster", _candidate(table, explanation, 0)),
            ("runner-up", _candidate(table, explanation, 1) if len(explanation.candidates) > 1 else "none"),
            ("action", explanation.decision.action.text),
            ("why", _why(table, explanation)),
        ]
    )


def _candidate(table: RoutingTable, explanation: Explanation, place: int) -> str:
    candidate = explanation.candidates[place]
    density = "" if candidate.log_density is None else f", log density {candidate.log_density:.3f}"
    action = table.decider.clusters[candidate.cluster].action
    return f"{candidate.cluster} at distance {candidate.distance:.3f}{density}, action {action}"


def _why(table: RoutingTable, explanation: Explanation) -> str:
    index = explanation.decision.cluster
    cluster = table.decider.clusters[index]
    assigned = "the nearest" if table.decider.clustering.kind == "kmeans" else "the likeliest"
    bit = f"cluster {index} is {assigned}, and its learned action is {cluster.action}"
    gain = measured_gain(cluster)
    if gain is None:
        tried = [name for name in ("local", "remote") if getattr(cluster.rewards, name) is not None]
        return f"{bit}; measured there: {' and '.join(tried) or 'neither action'}, so the gain is unknown"
    rewards = ", ".join(
        f"{name} {uncertain(reward.mean, reward.standard_error)}"
        for name, reward in (("local", cluster.rewards.local), ("remote", cluster.rewards.remote))
        if reward is not None
    )
    doubt = ", within the noise" if gain.within_noise else ""
    return f"{bit}; measured {table.provenance.reward} there: {rewards}, gain {gain_text(gain)}{doubt}"


def _gaps(explanation: Explanation) -> str:
    rows = [
        [
            gap.name,
            tokens(gap.tokens),
            tokens(gap.centre_tokens),
            tokens(gap.tokens - gap.centre_tokens, signed=True),
            f"{gap.z:.3f}",
            f"{gap.centre_z:.3f}",
            f"{gap.z - gap.centre_z:+.3f}",
        ]
        for gap in explanation.gaps
    ]
    header = ["feature", "request", "centre", "difference", "z request", "z centre", "z difference"]
    return columns(header, rows, left=frozenset({0}))
