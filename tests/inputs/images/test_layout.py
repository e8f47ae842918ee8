"""Tiles and texts are those of transformers' processors, whatever an image's form."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inputs.images.pictures import file

from quintet.inputs.images.decode import _FILTERS, tiles
from quintet.inputs.images.layout import FILTERS, ImageTraits, layout

RECORDED = json.loads((Path(__file__).parents[2] / "reference" / "transformers_images.json").read_text(encoding="utf-8"))
IDEFICS = ImageTraits("idefics3", 512, 2048, 64)


def name(case: dict[str, Any]) -> str:
    return f"{case['family']} {case['mode']} {case['size'][0]}x{case['size'][1]} {case['tile']} {case['longest_edge']}"


@pytest.mark.fault("B15")
@pytest.mark.parametrize("case", RECORDED["cases"], ids=name)
def test_tiles_and_text_are_those_that_transformers_makes(case: dict[str, Any]) -> None:
    width, height = case["size"]
    traits = ImageTraits(case["family"], case["tile"], case["longest_edge"], 1)
    cut = traits.cut(width, height)
    made = list(tiles(file(width, height, mode=case["mode"]), cut, traits.tile, _FILTERS[FILTERS[traits.family]]))
    assert len(made) == cut.tiles == case["tiles"]
    assert {len(one) for one in made} == {traits.tile_bytes}
    assert layout(cut, traits) == case["text"]
    assert hashlib.sha256(b"".join(made)).hexdigest() == case["pixels"]


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 4096), st.sampled_from([32, 364, 512, 896]))
def test_no_form_of_an_image_makes_more_tiles_than_its_longest_edge_has_room_for(width: int, height: int, longest: int, tile: int) -> None:
    cut = ImageTraits("idefics3", tile, longest, 64).cut(width, height)
    most = -(-longest // tile)
    assert cut.rows <= most and cut.columns <= most and max(cut.rows, cut.columns) in (0, most)
    assert cut.sizes[-1] == (max(cut.columns, 1) * tile, max(cut.rows, 1) * tile)
    assert all(1 <= edge <= max(longest, most * tile) for size in cut.sizes for edge in size)


def test_a_photograph_is_thirteen_tiles_and_fewer_where_the_longest_edge_is_bounded() -> None:
    assert IDEFICS.cut(4032, 3024).tiles == 13
    assert ImageTraits("idefics3", 512, 1024, 64).cut(4032, 3024).tiles == 5
    assert ImageTraits("idefics3", 512, 512, 64).cut(4032, 3024).tiles == 1
