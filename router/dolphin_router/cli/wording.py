"""Numbers and tables as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from dolphin_router.contract import RoutingTable, Slo
from dolphin_router.gain import Gain

NOTHING = "-"


def tokens(count: float, *, signed: bool = False) -> str:
    """Return a token count: whole, or with one digit where it matters."""
    digits = 0 if abs(count) >= 10 or count == int(count) else 1
    return f"{count:{'+' if signed else ''},.{digits}f}"


def uncertain(mean: float, standard_error: float | None, *, signed: bool = False) -> str:
    """Return a measured value with its standard error; a question mark where that is unknown."""
    error = "?" if standard_error is None else f"{standard_error:.4f}"
    return f"{mean:{'+' if signed else ''}.4f} ± {error}"


def gain_text(gain: Gain | None) -> str:
    """Return a gain, or a dash where it was not measured."""
    return NOTHING if gain is None else uncertain(gain.mean, gain.standard_error, signed=True)


def slo_text(slo: Slo) -> str:
    """Return an SLO as a part of a sentence."""
    # Twelve digits: limits that differ look different.
    first, later = f"{slo.ttft_ms / 1e3:,.12g} s", f"{slo.tpot_ms:,.12g} ms"
    if slo.ttft_us_per_prompt_token:
        first += f" plus {slo.ttft_us_per_prompt_token:,.12g} ms for each 1,000 tokens of the prompt"
    if slo.kind == "both":
        return f"the first token within {first}, and the later ones every {later} on average"
    return f"the whole answer within {first} plus {later} for each token after the first"


def clustering_text(table: RoutingTable) -> str:
    """Return how many clusters there are and how requests find theirs."""
    clustering = table.decider.clustering
    count = len(table.decider.clusters)
    kind = "k-means" if clustering.kind == "kmeans" else f"Gaussian mixture, {clustering.covariance} covariance"
    return f"{count} ({kind})"


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: frozenset[int] = frozenset()) -> str:
    """Return rows under a header, aligned right except in the columns ``left``."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names and values in two columns."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)
