"""Which replica a request goes to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quintet.backends.native.core.loader import PAGE
from quintet.deploy.routing import OVER, SLACK, Router, page_digests
from quintet.inputs.images.value import PreparedImage
from quintet.inputs.sequence import PreparedSequence
from quintet.request import Sampling


def sequence(*tokens: int, salt: bytes = b"", images: tuple[PreparedImage, ...] = ()) -> PreparedSequence:
    return PreparedSequence(tokens, 1, Sampling(1.0, 1.0, seed=0), None, echo=False, salt=salt, images=images)


def image(digest: bytes, first: int, count: int) -> PreparedImage:
    return PreparedImage(digest, ((first, count),), (first, count), (1, 1, 1), b"")


tokens = st.lists(st.integers(0, 3), max_size=4 * PAGE).map(tuple)


@given(tokens, tokens)
def test_as_many_digests_are_equal_as_full_pages_are(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    ours, theirs = page_digests(sequence(*one)), page_digests(sequence(*other))
    assert len(ours) == len(one) // PAGE
    for index, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
        assert (mine == its) is (one[: (index + 1) * PAGE] == other[: (index + 1) * PAGE])


def test_pages_of_other_salts_or_images_are_others() -> None:
    page = (7,) * PAGE * 3
    plain = page_digests(sequence(*page))
    assert not {*plain} & {*page_digests(sequence(*page, salt=b"a"))}
    seen = page_digests(sequence(*page, images=(image(b"x" * 32, PAGE + 2, 4),)))
    assert seen[0] == plain[0]
    assert seen[1:] != plain[1:]
    assert seen[1] != page_digests(sequence(*page, images=(image(b"y" * 32, PAGE + 2, 4),)))[1]
    assert len(page_digests(replace(sequence(), tokens=(1,) * PAGE * 5000))) == 1024


loads_of = st.dictionaries(st.integers(0, 9), st.integers(0, 40), min_size=1)
prompts = st.lists(st.integers(0, 5), max_size=6).map(lambda pages: [bytes(pages[: index + 1]) for index in range(len(pages))])


@given(st.lists(st.tuples(prompts, loads_of, st.integers(1, 4)), max_size=30))
def test_a_replica_is_chosen_that_is_there_and_not_beyond_the_bound(requests: list[tuple[list[bytes], dict[int, int], int]]) -> None:
    router = Router()
    for digests, loads, count in requests:
        chosen = router.route(digests, loads, count)
        assert loads[chosen] == min(loads.values()) or loads[chosen] + count <= OVER * (sum(loads.values()) + count) / len(loads) + SLACK


@given(prompts.filter(bool), st.lists(prompts, max_size=20), st.integers(2, 6))
def test_a_prompt_goes_where_its_pages_are(prompt: list[bytes], others: list[list[bytes]], replicas: int) -> None:
    router, loads = Router(), dict.fromkeys(range(replicas), 0)
    holder = router.route(prompt, loads, 1)
    for other in others:
        router.route(other, loads, 1)
    assert router.route(prompt, loads, 1) == holder
    longer = [*prompt, b"x" * 16]
    assert router.route(longer, loads, 1) == holder


def test_the_longest_match_counts_and_then_the_load() -> None:
    router = Router()
    router.route([b"a"], {1: 0}, 1)
    router.route([b"a", b"ab"], {2: 0}, 1)
    router.route([b"a", b"ab"], {3: 0}, 1)
    assert router.route([b"a", b"ab", b"abc"], {1: 0, 2: 4, 3: 2}, 1) == 3


def test_a_holder_beyond_the_bound_is_left_alone_and_the_next_one_holds_it_too() -> None:
    router = Router()
    holder = router.route([b"a"], {0: 0, 1: 0, 2: 0}, 1)
    loads = {one: 60 if one == holder else 0 for one in range(3)}
    second = router.route([b"a"], loads, 1)
    assert second != holder
    assert router.route([b"a"], {**loads, second: 3}, 1) == second


def test_what_a_replica_must_have_forgotten_is_forgotten_the_least_recently_used_first() -> None:
    router = Router()
    router.route([b"a"], {0: 0}, 1, pages=2)
    router.route([b"b"], {0: 0}, 1, pages=2)
    router.route([b"a"], {0: 0}, 1, pages=2)
    router.route([b"c"], {0: 0}, 1, pages=2)  # b goes
    assert router.route([b"a"], {0: 3, 1: 0}, 1) == 0
    router.forget(0)
    assert router.route([b"a"], {0: 3, 1: 0}, 1) == 1


def test_an_unknown_prompt_has_the_same_two_places_whoever_else_comes() -> None:
    """Consistent: of 200 prompts no more than their share moves to a replica that is added, and no other moves."""
    moved = 0
    for number in range(200):
        digest = number.to_bytes(16, "little")
        before = Router().route([digest], dict.fromkeys(range(4), 0), 1)
        after = Router().route([digest], dict.fromkeys(range(5), 0), 1)
        assert after in (before, 4)
        moved += after == 4
    assert 15 <= moved <= 70


def test_of_its_two_places_it_goes_to_the_one_with_less_to_do() -> None:
    loads = dict.fromkeys(range(8), 0)
    first = Router().route([b"a"], loads, 1)
    second = Router().route([b"a"], {**loads, first: 1}, 1)
    assert second != first
    assert Router().route([b"a"], {**loads, first: 1, second: 2}, 1) == first


def test_prompts_without_a_full_page_spread_by_load() -> None:
    assert Router().route([], {0: 2, 1: 1, 2: 5}, 1) == 1
