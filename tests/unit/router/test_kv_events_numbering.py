"""From the numbers of an engine's messages follows what was missed."""

from __future__ import annotations

from dolphin_router.kv_events.numbering import REPEAT_S, Numbering, Verdict


def _take(numbering: Numbering, *numbers: int, now_s: float = 100.0) -> list[Verdict]:
    verdicts = []
    for number in numbers:
        verdicts.append(numbering.judge(number, now_s=now_s))
        if verdicts[-1] is not Verdict.REPEATED:
            numbering.seen(number)
    return verdicts


def test_numbers_that_count_up_miss_nothing() -> None:
    assert _take(Numbering(), 0, 1, 2) == [Verdict.NEXT] * 3


def test_a_number_that_is_passed_over_is_a_gap() -> None:
    numbering = Numbering()
    assert _take(numbering, 0, 1, 4, 5) == [Verdict.NEXT, Verdict.NEXT, Verdict.GAP, Verdict.NEXT]
    assert Numbering().judge(3, now_s=0.0) is Verdict.GAP


def test_a_number_that_goes_back_is_a_restart() -> None:
    for again in (0, 3, 7):
        numbering = Numbering()
        numbering.seen(6)
        assert _take(numbering, 7, again) == [Verdict.NEXT, Verdict.RESTART]


def test_after_a_restart_all_messages_since_are_wanted() -> None:
    numbering = Numbering()
    numbering.seen(9)
    assert numbering.judge(2, now_s=100.0) is Verdict.RESTART
    assert numbering.wanted == 0


def test_what_a_replay_has_brought_is_repeated_but_no_restart() -> None:
    numbering = Numbering()
    _take(numbering, 0)
    assert numbering.judge(4, now_s=100.0) is Verdict.GAP
    for number in range(1, 9):  # the replay went on to what was published in the meantime
        numbering.seen(number)
    assert _take(numbering, 5, 6, 7, 8, 9) == [Verdict.REPEATED] * 4 + [Verdict.NEXT]


def test_before_any_live_message_only_those_just_replayed_are_repeated() -> None:
    numbering = Numbering()
    for number in range(5):
        numbering.seen(number)
    numbering.replayed(now_s=10.0)
    assert numbering.judge(3, now_s=10.1) is Verdict.REPEATED
    late = Numbering()
    for number in range(5):
        late.seen(number)
    late.replayed(now_s=10.0)
    assert late.judge(0, now_s=10.0 + REPEAT_S) is Verdict.RESTART
