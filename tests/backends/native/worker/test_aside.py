"""What guides allow further on is asked beside the worker's thread: whatever it takes, a step waits for a moment, and once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from quintet.backends.native.draft.jump_forward import JumpForward
from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.backends.native.worker import aside
from quintet.backends.native.worker.aside import Aside, Jumping
from quintet.guides.matcher import U32, Compiler, Matcher
from quintet.guides.translate import translate
from quintet.request import GuideKind, Sampling

PIECES = [*(bytes([byte]) for byte in range(256)), b""]
COMPILER = Compiler(PIECES, frozenset({256}), len(PIECES))
AMBIGUOUS = 'start: s\ns: s s | s s s | s s s s | "," WS?\nWS: /[ ]/\n'
"""Each comma makes many more ways in which those before it may belong together."""


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opened at the end, or else the interpreter would wait for the thread that does."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(aside, "WAIT_S", 60.0)


def following(kind: GuideKind, guide: str, output: str) -> Sequence:
    seq = Sequence(1, 0, Group((5,), echo=False, logprobs=None, salt=b""), max_tokens=99, sampling=Sampling(0.0, 1.0, 1), logprobs=None)
    seq.matcher, seq.generated = COMPILER.compile(translate(kind, guide)), list(output.encode())
    return seq


@pytest.mark.usefixtures("patient")
def test_work_is_done_in_another_thread_and_its_processor_time_told() -> None:
    found = Aside().ask(threading.get_native_id)
    assert found is not None and found[0] != threading.get_native_id() and found[1] >= 0


def test_work_that_is_late_is_left_to_its_thread_and_another_does_the_next(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Aside()
    monkeypatch.setattr(aside, "WAIT_S", 0.01)
    assert one.ask(lambda: gate.wait(60)) is None
    monkeypatch.setattr(aside, "WAIT_S", 60.0)
    found = one.ask(lambda: "next")
    assert found is not None and found[0] == "next" and not gate.is_set()


@pytest.mark.usefixtures("patient")
def test_work_that_breaks_is_logged_and_breaks_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class PanicError(BaseException):
        pass

    def panic() -> None:
        raise PanicError("of the library")

    one = Aside()
    assert one.ask(panic) is None and "it is not asked again" in caplog.text
    assert one.ask(lambda: 1) is not None


@pytest.mark.usefixtures("patient")
def test_a_sequence_is_told_what_its_guide_makes_likely_and_stays_where_it_is() -> None:
    seq = following(GuideKind.REGEX, "(yes|no), I am (sure|not)", "yes")
    assert bytes(Jumping(COMPILER).guess(seq)) == b", I am" and seq.foreseen
    assert seq.matcher is not None and seq.matcher.consumed == 3 and seq.matcher.forced().startswith(b", I am")


@pytest.mark.fault("B10")
@pytest.mark.usefixtures("patient")
def test_a_walk_through_an_ambiguous_grammar_ends_when_it_has_taken_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be 128 masks, each dearer than the one before: seconds."""
    masks, fill = 0, Matcher.fill

    def counted(one: Matcher, mask: U32) -> bool:
        nonlocal masks
        masks += 1
        return fill(one, mask)

    monkeypatch.setattr(Matcher, "fill", counted)
    monkeypatch.setattr(aside, "WALK_S", 0.0)
    Jumping(COMPILER).guess(following(GuideKind.GRAMMAR, AMBIGUOUS, ",,,,"))
    assert masks == 0
    monkeypatch.setattr(aside, "WALK_S", 0.05)
    Jumping(COMPILER).guess(following(GuideKind.GRAMMAR, AMBIGUOUS, ",,,,"))
    assert masks > 0, "a limit of time is all that was in its way"


@pytest.mark.fault("B10")
def test_a_guide_that_takes_long_to_look_ahead_in_is_not_asked_again(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def slow(*_: object) -> list[int]:
        asked.append(1)
        gate.wait(60)
        return []

    monkeypatch.setattr(aside, "WAIT_S", 0.01)
    monkeypatch.setattr(JumpForward, "guess", slow)
    seq, jumping = following(GuideKind.REGEX, "yes|no", ""), Jumping(COMPILER)
    for _ in range(3):
        assert jumping.guess(seq) == [] and not seq.foreseen
    assert asked == [1] and not gate.is_set()
    monkeypatch.undo()
    assert jumping.guess(following(GuideKind.REGEX, "yes", "")), "others are"


@pytest.mark.usefixtures("patient")
def test_one_that_used_much_of_the_processor_is_not_asked_again_though_it_came_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "SLOW_S", -1.0)
    seq, jumping = following(GuideKind.REGEX, "yes", ""), Jumping(COMPILER)
    assert bytes(jumping.guess(seq)) == b"yes" and not seq.foreseen
    assert jumping.guess(seq) == []
