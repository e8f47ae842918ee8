"""Wrong keys: who waits after too many of them, and who does not."""

from __future__ import annotations

import pytest

from quintet.errors import TooManyRequests
from quintet.keys.key import Key
from quintet.keys.lockout import MOST_ADDRESSES, MOST_FAILURES, Lockout
from quintet.keys.site import site

CHOSEN, GENERATED = Key(b"\1" * 32), Key(b"\2" * 32, generated=True)


def guessed(address: str, times: int = MOST_FAILURES) -> Lockout:
    """After so many wrong keys from an address."""
    lockout = Lockout(lambda: 0.0)
    for _ in range(times):
        lockout.require(address, None)
    return lockout


def locked(lockout: Lockout, address: str, key: Key | None) -> bool:
    try:
        lockout.require(address, key)
    except TooManyRequests:
        return True
    return False


@pytest.mark.fault("F07")
def test_a_guesser_behind_a_shared_address_keeps_nobody_out_who_has_a_generated_key() -> None:
    """Also one that was never used from there: it cannot be guessed, so nothing is told by letting it in."""
    lockout = guessed("proxy")
    assert locked(lockout, "proxy", None)
    assert locked(lockout, "proxy", CHOSEN), "it may be a guess that was right, and must not show"
    assert not locked(lockout, "proxy", GENERATED)
    assert not locked(lockout, "elsewhere", CHOSEN)


def test_a_chosen_key_that_was_used_from_an_address_is_let_in_there_and_another_is_not() -> None:
    lockout = guessed("office", MOST_FAILURES - 1)
    for _ in range(3):
        assert not locked(lockout, "office", CHOSEN), "a right one is no try"
    assert [locked(lockout, "office", None) for _ in range(2)] == [False, True]
    assert not locked(lockout, "office", CHOSEN)
    assert locked(lockout, "office", Key(b"\3" * 32))


def test_an_address_that_waits_may_try_again_at_the_rate_that_it_is_told_and_never_more_at_once() -> None:
    now = 0.0
    lockout = Lockout(lambda: now)

    def tried() -> int:
        return [locked(lockout, "a", None) for _ in range(2 * MOST_FAILURES)].index(True)

    assert tried() == MOST_FAILURES
    with pytest.raises(TooManyRequests) as refused:
        lockout.require("a", None)
    for after, more in ((0.9, 0), (0.1, 1), (2.5, 2), (0.5, 1), (1000.0, MOST_FAILURES)):
        now += after * refused.value.retry_after
        assert tried() == more


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "", True),
        ("no address", "no address", True),
        (":::", "::1", False),
    ],
)
def test_a_guesser_has_no_more_tries_for_all_the_addresses_of_its_ipv6_network(one: str, other: str, same: bool) -> None:
    assert (site(one) == site(other)) is same
    assert locked(guessed(one), other, None) is same


def test_the_memory_for_addresses_is_bounded() -> None:
    lockout = Lockout(lambda: 0.0)
    for number in range(2 * MOST_ADDRESSES):
        lockout.require(str(number), None)
    assert len(lockout._records) == MOST_ADDRESSES


def test_the_address_that_tried_nothing_for_the_longest_time_is_forgotten() -> None:
    lockout = guessed("early")
    lockout.require("idle", None)
    assert locked(lockout, "early", None)
    for number in range(MOST_ADDRESSES - 1):
        lockout.require(str(number), None)
    assert "idle" not in lockout._records
    assert locked(lockout, "early", None)
