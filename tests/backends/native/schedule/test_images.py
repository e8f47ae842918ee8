"""Images in prompts: where a chunk may end, what pages are known by, whose image is encoded next, what is kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from tests.backends.native.schedule.harness import Simulation, prepared

from quintet.backends.native.schedule.images import Encodings, Given, Key, PendingImage, PromptImages, ShownPrompt
from quintet.backends.native.schedule.kv import page_digest
from quintet.backends.native.schedule.queues import Queues
from quintet.backends.native.schedule.sequence import Group, Sequence
from quintet.inputs.images.value import PreparedImage
from quintet.request import Sampling

WIDTH = 4


def image(name: str, *places: tuple[int, int]) -> PreparedImage:
    span = places[0][0], places[-1][0] + places[-1][1] - places[0][0]
    return PreparedImage(hashlib.sha256(name.encode()).digest(), places, span, (len(places), 1, 1), b"")


def key(name: str, salt: bytes = b"") -> Key:
    return salt, image(name, (0, 1)).digest


def rows(count: int, value: float = 0.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((count, WIDTH), value, np.float32)


TILED = image("tiled", (3, 4), (9, 4))  # text, a tile, two tokens of text, another tile


class TestChunks:
    def prompt(self, *, both_ways: bool) -> tuple[Encodings, PromptImages]:
        encodings = Encodings(both_ways=both_ways)
        return encodings, PromptImages((TILED, image("second", (20, 6))), b"", encodings)

    @pytest.mark.parametrize("both_ways", [False, True])
    def test_what_is_not_encoded_is_not_gone_into(self, both_ways: bool) -> None:
        encodings, prompt = self.prompt(both_ways=both_ways)
        assert [prompt.reach(0, stop) for stop in (2, 3, 4, 30)] == [2, 3, 3, 3]
        assert prompt.reach(5, 30) == 5
        encodings.keep(key("tiled"), rows(8))
        assert prompt.reach(0, 30) == 20
        encodings.keep(key("second"), rows(6))
        assert prompt.reach(0, 30) == 30

    def test_a_chunk_ends_anywhere_where_tokens_see_what_is_before_them(self) -> None:
        encodings, prompt = self.prompt(both_ways=False)
        encodings.keep(key("tiled"), rows(8))
        assert [prompt.reach(1, stop) for stop in range(2, 14)] == list(range(2, 14))
        assert [prompt.cut(1, stop) for stop in range(2, 14)] == list(range(2, 14))
        assert prompt.given(1, 5).spans == []

    def test_what_sees_itself_both_ways_is_computed_at_once_or_later(self) -> None:
        encodings, prompt = self.prompt(both_ways=True)
        encodings.keep(key("tiled"), rows(8))
        assert [prompt.reach(1, stop) for stop in range(2, 14)] == [2, 3, 7, 7, 7, 7, 8, 9, 13, 13, 13, 13]
        assert [prompt.cut(1, stop) for stop in range(2, 14)] == [2, 3, 3, 3, 3, 7, 8, 9, 9, 9, 9, 13]
        assert prompt.cut(5, 6) == 5
        assert prompt.given(1, 13).spans == [(2, 4), (8, 4)]
        assert prompt.given(5, 8).spans == [(0, 2)]

    def test_a_segment_is_given_the_rows_of_its_places(self) -> None:
        encodings, prompt = self.prompt(both_ways=False)
        encodings.keep(key("tiled"), np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH))
        given = prompt.given(5, 11)
        assert [(at, found[:, 0].tolist()) for at, found in given.rows] == [(0, [8.0, 12.0]), (4, [16.0, 20.0])]

    def test_places_without_rows_are_refused(self) -> None:
        encodings, prompt = self.prompt(both_ways=False)
        encodings.keep(key("tiled"), rows(7))
        with pytest.raises(ValueError, match="more places than rows"):
            prompt.given(0, 13)

    @pytest.mark.parametrize("both_ways", [False, True])
    def test_where_nothing_is_computed_no_row_is_needed(self, both_ways: bool) -> None:
        """A prefix may end among the tokens of an image that was seen before, whose rows are gone."""
        encodings, prompt = self.prompt(both_ways=both_ways)
        assert prompt.reach(5, 6) == prompt.cut(5, 5) == 5
        assert prompt.given(5, 5) == Given([], [])
        encodings.keep(key("tiled"), rows(8))
        assert prompt.reach(5, 5) == 5
        assert prompt.given(5, 5) == Given([], [])

    def test_text_is_the_prompt_without_its_places(self) -> None:
        _, prompt = self.prompt(both_ways=False)
        assert prompt.without(tuple(range(28))) == (0, 1, 2, 7, 8, *range(13, 20), 26, 27)
        assert prompt.without(tuple(range(26))) == (0, 1, 2, 7, 8, *range(13, 20))
        tiles = PromptImages((image("next", (4, 3)), image("first", (0, 4))), b"", Encodings())
        assert tiles.without((7,) * 7 + (1, 2)) == (1, 2)

    def test_text_is_looked_for_once_for_all_samples_of_a_prompt(self) -> None:
        """Each makes a sampler that has seen it, up to 64 of them in a step."""
        group = Group(tuple(range(28)), echo=False, logprobs=None, images=self.prompt(both_ways=False)[1])
        assert group.text == (0, 1, 2, 7, 8, *range(13, 20), 26, 27)
        assert group.text is group.text


def test_prompts_of_the_same_tokens_are_one_only_if_they_have_the_same_images_in_the_same_places() -> None:
    queues = Queues(Simulation().kv, Encodings())
    seen = [(image("a", (4, 4)),), (image("a", (4, 4)),), (image("b", (4, 4)),), (image("a", (5, 4)),), ()]
    queues.add(0, [replace(prepared(b"see ####."), images=images) for images in seen], 0.0, "", 1)
    first, same, *others = (seq.group for seq in queues.of(0))
    assert same is first
    assert len({first, *others}) == 4


class TestIdentity:
    def of(self, *images: PreparedImage, start: int = 0) -> bytes:
        return PromptImages(images, b"", Encodings()).identity(start, start + 16)

    def test_a_page_is_known_by_which_rows_of_which_images_are_where(self) -> None:
        pages = [
            self.of(image("a", (3, 4))),
            self.of(image("b", (3, 4))),
            self.of(image("a", (4, 4))),
            self.of(image("a", (3, 5))),
            self.of(image("a", (3, 4), (9, 4))),
            self.of(image("a", (3, 4)), image("a", (9, 4))),
            self.of(image("a", (12, 8))),
            self.of(image("a", (12, 8)), start=16),
            self.of(image("a", (12, 24)), start=16),
            self.of(image("a", (12, 40)), start=32),
        ]
        assert len(set(pages)) == len(pages)

    def test_pages_of_the_same_tokens_are_others_from_the_one_on_in_which_their_images_differ(self) -> None:
        def digests(*images: PreparedImage) -> list[bytes]:
            group = Group((7,) * 64, echo=False, logprobs=None, images=PromptImages(images, b"", Encodings()))
            seq = Sequence(0, 0, group, 1, Sampling(0.0, 1.0, 0), None)
            return [page_digest(seq, index) for index in range(4)]

        first, second = image("a", (20, 4)), image("a", (44, 4))
        one = digests(first, second)
        for others, alike in (((), 1), ((image("b", (20, 4)), second), 1), ((first, image("b", (44, 4))), 2), ((first, second), 4)):
            assert [mine == its for mine, its in zip(one, digests(*others), strict=True)] == [True] * alike + [False] * (4 - alike)

    def test_a_page_of_text_has_none(self) -> None:
        assert self.of(image("a", (16, 4))) == b""
        assert self.of(image("a", (12, 4)), start=16) == b""


class TestTurns:
    def waiting(self, encodings: Encodings, *who: tuple[str, int, str, bytes]) -> PendingImage | None:
        """Tenant, request, image and salt of each."""
        return encodings.next(
            ShownPrompt(tenant, request, PromptImages((image(name, (0, 4)),), salt, encodings), 0) for tenant, request, name, salt in who
        )

    def test_an_image_that_was_begun_is_gone_on_with_while_it_is_wanted(self) -> None:
        encodings = Encodings()
        first, second = ("t", 1, "a", b""), ("u", 2, "b", b"")
        assert self.waiting(encodings, first).key == key("a")  # type: ignore[union-attr]
        assert self.waiting(encodings, second, first).key == key("a")  # type: ignore[union-attr]
        assert self.waiting(encodings, second).key == key("b")  # type: ignore[union-attr]
        assert self.waiting(encodings) is None

    def test_tenants_take_turns(self) -> None:
        encodings, served = Encodings(), list[str]()
        left = [("many", number, f"m{number}", b"") for number in range(4)] + [("few", 9, "f0", b""), ("few", 9, "f1", b"")]
        while job := self.waiting(encodings, *left):
            name = next(one[2] for one in left if key(one[2]) == job.key)
            encodings.keep(job.key, rows(4))
            served.append(name)
            left = [one for one in left if one[2] != name]
        assert served == ["m0", "f0", "m1", "f1", "m2", "m3"]

    def test_one_image_of_two_requests_is_encoded_once_but_not_across_salts(self) -> None:
        encodings = Encodings()
        both = ("t", 1, "a", b""), ("u", 2, "a", b""), ("v", 3, "a", b"x")
        assert self.waiting(encodings, *both).request_id == 1  # type: ignore[union-attr]
        encodings.keep(key("a"), rows(4))
        assert self.waiting(encodings, *both).key == key("a", b"x")  # type: ignore[union-attr]

    def test_only_images_that_are_not_behind_are_wanted(self) -> None:
        encodings = Encodings()
        prompt = PromptImages((image("a", (2, 4)), image("b", (8, 4))), b"", encodings)
        assert [job.key if (job := encodings.next([ShownPrompt("", 1, prompt, at)])) else None for at in (0, 5, 6, 11, 12)] == [
            key("a"),
            key("a"),
            key("b"),
            key("b"),
            None,
        ]


class TestKept:
    def test_what_is_needed_stays_and_of_the_rest_what_was_used_last(self) -> None:
        size = rows(4).nbytes
        encodings = Encodings(most=2 * size)
        needed = PromptImages((image("needed", (0, 4)),), b"", encodings)
        for name in ("needed", "a", "b", "c"):
            encodings.next([ShownPrompt("", 1, needed, 0)])
            encodings.rows(key("a"))
            encodings.keep(key(name), rows(4))
        assert [encodings.rows(key(name)) is not None for name in ("needed", "a", "b", "c")] == [True, True, False, True]

    def test_all_that_nobody_needs_can_be_shed(self) -> None:
        encodings = Encodings()
        needed = PromptImages((image("needed", (0, 4)),), b"", encodings)
        encodings.next([ShownPrompt("", 1, needed, 0)])
        encodings.keep(key("needed"), rows(4))
        encodings.keep(key("a"), rows(4))
        encodings.next([ShownPrompt("", 1, needed, 0)])
        encodings.shed()
        assert [encodings.rows(key(name)) is not None for name in ("needed", "a")] == [True, False]
