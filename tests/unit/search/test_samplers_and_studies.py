"""The published search, its course and its interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dolphin_router.contract import DocumentError, most_rounds
from dolphin_search.checkpoint import CheckpointFile
from dolphin_search.environments import Actions
from dolphin_search.measurement import Measurement
from dolphin_search.samplers import Round, ScanThenEpsilonGreedy
from dolphin_search.study import Study

K = 8
SAMPLERS = [
    ScanThenEpsilonGreedy(seed=seed, reward=reward, scan=scan)
    for seed in (0, 1)
    for reward in ("cluster", "global", "log-latency")
    for scan in (True, False)
]


class Toy:
    """A reward that is linear with pairs; interrupts when told."""

    def __init__(self, *, is_repeatable: bool = True, interrupted_at: int | None = None, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._linear = random.normal(size=K)
        self._pairs = np.triu(random.normal(scale=0.2, size=(K, K)), 1)
        self.is_repeatable = is_repeatable
        self._interrupted_at = interrupted_at

    def value(self, actions: Actions) -> float:
        x = np.array(actions) * 2.0 - 1.0
        return float(1 / (1 + np.exp(-(self._linear @ x + x @ self._pairs @ x) / 4)))

    def measure(self, actions: Actions, *, round_number: int) -> Measurement:
        if round_number == self._interrupted_at:
            raise KeyboardInterrupt
        value = self.value(actions)
        if not self.is_repeatable:
            value = min(1.0, max(0.0, value + float(np.random.default_rng(round_number).normal(scale=0.02))))
        own = 0.5 + 0.4 * np.tanh(self._linear) * (2 * np.array(actions) - 1)
        return Measurement(100, value, float(np.log(value + 1e-9)), (10,) * K, tuple(own.tolist()))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@pytest.mark.parametrize("is_repeatable", [True, False])
def test_equal_rounds_make_equal_proposals(sampler: ScanThenEpsilonGreedy, is_repeatable: bool) -> None:
    study = Study(clusters=K, sampler=sampler, environment=Toy(is_repeatable=is_repeatable))
    study.run(40)
    for number, entry in enumerate(study.rounds):
        asked = sampler.ask(study.rounds[:number], clusters=K, is_repeatable=is_repeatable)
        assert asked == entry.actions
        assert len(entry.actions) == K
        assert set(entry.actions) <= {0, 1}


@pytest.mark.parametrize("reward", ["cluster", "global", "log-latency"])
def test_the_scan_measures_both_actions_of_each_cluster(reward: str) -> None:
    study = Study(clusters=K, sampler=ScanThenEpsilonGreedy(reward=reward), environment=Toy())
    study.run(2 * K)
    for cluster in range(K):
        local, remote = study.rounds[2 * cluster].actions, study.rounds[2 * cluster + 1].actions
        assert (local[cluster], remote[cluster]) == (0, 1)
        assert local[:cluster] == remote[:cluster]
        assert local[cluster + 1 :] == remote[cluster + 1 :]


@pytest.mark.parametrize("seed", range(5))
def test_eighty_rounds_come_close_to_the_best_of_all_tables(seed: int) -> None:
    toy = Toy(seed=seed)
    study = Study(clusters=K, sampler=ScanThenEpsilonGreedy(seed=seed, reward="global"), environment=toy)
    study.run(80)
    best = max(toy.value(tuple(int(bit) for bit in f"{number:08b}")) for number in range(2**K))
    assert toy.value(study.best()) >= best - 0.01


def test_a_study_ends_when_every_table_was_tried() -> None:
    sampler = ScanThenEpsilonGreedy(reward="global")
    tables = [tuple(int(bit) for bit in f"{number:02b}") for number in range(4)]
    rounds = [Round(table, Measurement(1, 0.5, 0.0, (1, 1), (0.5, 0.5))) for table in tables]
    assert sampler.ask(rounds, clusters=2, is_repeatable=True) is None


@pytest.mark.parametrize("is_repeatable", [True, False])
@pytest.mark.parametrize("interrupted_at", [0, 1, 7, 16, 23])
def test_an_interrupted_study_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, interrupted_at: int, is_repeatable: bool
) -> None:
    sampler = ScanThenEpsilonGreedy(seed=4)
    undisturbed = Study(clusters=K, sampler=sampler, environment=Toy(is_repeatable=is_repeatable))
    undisturbed.run(30)
    checkpoint = CheckpointFile(tmp_path / "search.checkpoint", fingerprint="sha256:a")
    toy = Toy(is_repeatable=is_repeatable, interrupted_at=interrupted_at)
    study = Study(clusters=K, sampler=sampler, environment=toy, checkpoint=checkpoint)
    with pytest.raises(KeyboardInterrupt):
        study.run(30)
    rounds = checkpoint.load() if interrupted_at else []
    assert len(rounds) == interrupted_at
    resumed = Study(
        clusters=K,
        sampler=sampler,
        environment=Toy(is_repeatable=is_repeatable),
        checkpoint=checkpoint,
        rounds=rounds,
    )
    resumed.run(30)
    assert resumed.rounds == undisturbed.rounds
    assert resumed.best() == undisturbed.best()


def test_a_checkpoint_that_does_not_fit_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "search.checkpoint"
    CheckpointFile(path, fingerprint="sha256:a").save([])
    with pytest.raises(ValueError, match="other settings"):
        CheckpointFile(path, fingerprint="sha256:b").load()
    content = path.read_bytes()[:-20]
    path.write_bytes(content)
    with pytest.raises(DocumentError, match=str(path)):
        CheckpointFile(path, fingerprint="sha256:a").load()
    assert path.read_bytes() == content


@pytest.mark.parametrize("clusters", [1, 8, 64])
def test_as_many_rounds_as_are_allowed_can_be_read_again(tmp_path: Path, clusters: int) -> None:
    path = tmp_path / "search.checkpoint"
    checkpoint = CheckpointFile(path, fingerprint="sha256:" + 64 * "f")
    tiny = 1.2345678901234567e-6  # as long as a share is written
    long = Round((1,) * clusters, Measurement(10**8, tiny, -tiny, (10**8,) * clusters, (tiny,) * clusters))
    rounds = [long] * most_rounds(clusters)
    checkpoint.save(rounds)
    assert checkpoint.load() == rounds
    kept = path.read_bytes()
    # What could not be read again is not written.
    with pytest.raises(ValueError, match="could not be read again"):
        checkpoint.save(rounds * 2)
    assert path.read_bytes() == kept
