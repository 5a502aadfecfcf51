"""The arguments that name a policy: a rule, with its numbers if it has any, or a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path

from dolphin_router.contract import OutputModel, load_table
from dolphin_sim import policy
from dolphin_sim.cli import values
from dolphin_sim.cli.problem_arguments import ArgumentError
from dolphin_sim.episode import Episode
from dolphin_sim.output_length import predicted_output_tokens
from dolphin_sim.policy import RULES, Policy

DEFAULT_POLICY = "always-remote"

_RULES_WITH_NUMBERS: dict[str, Callable[..., Policy]] = {
    "tuned-length": policy.by_length,
    "tuned-effective-length": policy.by_effective_length,
    "tuned-cost": policy.by_cost,
    "dynamo-isl-bounding": policy.dynamo_isl_bounding,
    "dynamo-isl-or-load": policy.dynamo_isl_or_load,
    "llm-d": policy.llm_d,
}
POLICY_NAMES = tuple(sorted({*RULES, *_RULES_WITH_NUMBERS}))


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; without them the policy is :data:`DEFAULT_POLICY`."""
    group = parser.add_argument_group("policy")
    group.add_argument(
        "--policy",
        metavar="NAME|TABLE.json",
        default=DEFAULT_POLICY,
        help=f"a routing table, or one of {', '.join(POLICY_NAMES)} (default: %(default)s)",
    )
    group.add_argument(
        "--parameter",
        metavar="NUMBER",
        dest="parameters",
        type=values.number_from_0,
        action="append",
        default=[],
        help="a number of the rule, such as the tokens from which prompts go remote; given once for each, in order: "
        + "; ".join(f"{name}: {', '.join(_number_names(make))}" for name, make in _RULES_WITH_NUMBERS.items()),
    )


def policy_from_arguments(arguments: argparse.Namespace) -> tuple[Policy, OutputModel | None]:
    """Return the policy that the parsed arguments name, and the model by which it expects output lengths, if any.

    Raises:
        ArgumentError: there is no such rule or file, or the rule takes other numbers.
        DocumentError: the file is not a valid table.
    """
    name, numbers = arguments.policy, arguments.parameters
    if name in POLICY_NAMES:
        return _rule(name, numbers), None
    if not Path(name).is_file():
        raise ArgumentError(
            f"argument --policy: {name!r} is neither a rule nor a file; rules are {', '.join(POLICY_NAMES)}"
        )
    if numbers:
        raise ArgumentError("argument --parameter: a table takes no numbers; leave it out")
    table = load_table(Path(name))
    model = None if table.provenance.expected_lengths == "none" else table.output_model
    return policy.from_table(table.decider, name=Path(name).name), model


def with_expected_lengths(episode: Episode, model: OutputModel | None) -> Episode:
    """Return the episode with what the model expects of each request; without a model, as it is."""
    if model is None:
        return episode
    return replace(episode, expected_output_tokens=predicted_output_tokens(model, episode.requests))


def _rule(name: str, numbers: list[float]) -> Policy:
    make = _RULES_WITH_NUMBERS.get(name)
    if make is None:
        if numbers:
            raise ArgumentError(f"argument --parameter: {name} takes no numbers; leave it out")
        return RULES[name]()
    names = _number_names(make)
    # All or none: a rule whose numbers were cut short is more often a slip than a wish.
    if len(numbers) == len(names) or (not numbers and name in RULES):
        return make(*numbers)
    raise ArgumentError(
        f"argument --parameter: {name} takes {len(names)} ({', '.join(names)}), not {len(numbers)}; give --parameter "
        f"NUMBER once for each{', or leave it out for the defaults' if name in RULES else ''}"
    )


def _number_names(make: Callable[..., Policy]) -> list[str]:
    return [
        parameter.name
        for parameter in signature(make).parameters.values()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]
