"""Who stays and who goes where there are too many connections."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.listen.crowd import GRACE_S, SPARE, Crowd
from quintet.listen.limits import KEPT, MOST, most_connections, raise_descriptors
from quintet.listen.sockets import ListenError

pytestmark = pytest.mark.fault("B22")


class One:
    """A connection that closes a while after it was asked to."""

    def __init__(self, gone: list[One]) -> None:
        self._gone = gone

    def give_way(self) -> None:
        self._gone.append(self)


class Scene:
    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.asked: list[One] = []
        self.crowd: Crowd[One] = Crowd(most, lambda: self.now)

    def comes(self) -> tuple[One, bool]:
        full = self.crowd.is_full()
        one = One(self.asked)
        self.crowd.joined(one)
        return one, full


def test_who_says_nothing_gives_way_to_who_comes_the_eldest_first() -> None:
    scene = Scene(most=3)
    first, second, third = (scene.comes()[0] for _ in range(3))
    scene.crowd.works(second)
    scene.now = GRACE_S
    assert not scene.comes()[1]
    assert not scene.comes()[1]
    assert scene.asked == [first, third]


def test_one_that_just_came_is_given_its_time_and_the_newcomer_is_one_too_many() -> None:
    scene = Scene(most=2)
    scene.comes()
    scene.comes()
    scene.now = GRACE_S / 2
    assert scene.comes()[1]
    assert scene.asked == []


def test_who_is_being_answered_never_gives_way() -> None:
    scene = Scene(most=2)
    for _ in range(2):
        scene.crowd.works(scene.comes()[0])
    scene.now = 100.0
    assert scene.comes()[1]
    assert scene.asked == []


def test_one_that_waits_again_is_the_youngest() -> None:
    scene = Scene(most=2)
    first, second = scene.comes()[0], scene.comes()[0]
    scene.now = 5.0
    scene.crowd.works(first)
    scene.crowd.waits(first)
    scene.now = 6.0
    scene.comes()
    assert scene.asked == [second]


WHATS = ["comes", "works", "waits", "leaves", "later", "asked"]


@given(
    most=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(WHATS), st.integers(0, 99))),
)
def test_there_are_never_more_than_there_is_room_for(most: int, steps: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order; and nobody is asked to go who works, or whose time is not over."""
    scene = Scene(most)
    there: list[One] = []
    working: set[One] = set()
    since: dict[One, float] = {}
    for what, which in steps:
        before = len(scene.asked)
        one = there[which % len(there)] if there else None
        if what == "comes" and scene.crowd.has_room():
            there.append(scene.comes()[0])
            since[there[-1]] = scene.now
        elif what == "works" and one:
            scene.crowd.works(one)
            working.add(one)
        elif what == "waits" and one:
            scene.crowd.waits(one)
            working.discard(one)
            since[one] = scene.now
        elif what == "leaves" and one:
            scene.crowd.left(one)
            there.remove(one)
        elif what == "later":
            scene.now += which / 50
        elif what == "asked" and scene.asked and scene.asked[0] in there:
            there.remove(scene.asked[0])
            scene.crowd.left(scene.asked[0])
        for asked in scene.asked[before:]:
            assert asked not in working
            assert scene.now - since[asked] >= GRACE_S
        assert len(scene.crowd) == len(there) <= most + SPARE


def test_connections_leave_descriptors_for_the_rest() -> None:
    assert most_connections(None, 1024) == 1024 - KEPT - SPARE
    assert most_connections(None, 10**6) == MOST
    assert most_connections(100, 1024) == 100
    with pytest.raises(ListenError, match=r"--max-connections must be at most 832, since .* 1024 open files"):
        most_connections(833, 1024)
    with pytest.raises(ListenError, match="ulimit -n"):
        most_connections(None, KEPT + SPARE)


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "had"),
    [
        (1024, 4096, [(4096, 4096)], 4096),
        (1024, 1 << 20, [(65536, 1 << 20)], 65536),
        (1024, INFINITE, [(65536, INFINITE)], 65536),
        (4096, 4096, [], 4096),
        (1 << 20, 1 << 20, [], 1 << 20),
        (INFINITE, INFINITE, [], 65536),
    ],
)
def test_descriptors_are_raised_as_far_as_is_allowed_and_sensible_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: list[tuple[int, int]], had: int
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    assert (raise_descriptors(), told) == (had, raised)
