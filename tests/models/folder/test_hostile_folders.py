"""Folders of every kind that were tampered with: they open, or are refused in one line that names what is wrong; never more than that."""

from __future__ import annotations

import copy
import itertools
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.transformers_tiny import models

from quintet.errors import ModelError
from quintet.models.folder.kinds import KINDS
from quintet.models.opening import open_model

EXAMPLES = int(os.environ.get("QUINTET_FUZZ", "100"))
MEMORY = 32 << 20
CONFIG, WEIGHTS = "config.json", "model.safetensors"
NAMES = sorted(name for name, tiny in models().items() if tiny.config["model_type"] in KINDS)

Whole = Callable[[str], Path]
Fresh = Callable[[], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A good folder, written once."""
    folder = tmp_path_factory.mktemp("whole")
    return cache(lambda name: models()[name].write(folder / name))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """A new folder each time: what was there before may still be mapped."""
    parent, number = tmp_path_factory.mktemp("tampered"), itertools.count()

    def make() -> Path:
        folder = parent / str(next(number))
        folder.mkdir()
        return folder

    yield make


def opened(folder: Path) -> str:
    """Open a folder and remove it: the error that it is refused with, or an empty text."""
    tracemalloc.start()
    try:
        open_model(folder)
    except ModelError as error:
        text = str(error)
        assert text.startswith((f"{CONFIG}: ", f"{WEIGHTS}: ", f"{folder.name}: ")), text
        assert "\n" not in text
        assert len(text) < 600
        return text
    else:
        return ""
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert peak < MEMORY


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything inside a JSON value, the keys that lead there."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3, 31, 33, 1 << 16, 1 << 31, 1 << 48, 1 << 64, 10**400, -1, 0.0, 1e-300, 1e300, -0.5]),
    st.integers(-100, 5000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "yarn", "longrope", "llama3", "linear", "default", "silu", "gemma2", "BF16", "I8", "F8_E4M3", "\n", "x" * 5000]),
    st.lists(st.integers(-1, 1 << 49), max_size=5),
    st.builds(lambda: [[[]]] * 50),  # a new one each time: another value may be put into it
    st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention", "dtype", ""]), st.integers(0, 3), max_size=3),
)


@pytest.mark.fault("F12")
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_a_config_with_other_values_opens_or_is_refused_in_one_line(data: st.DataObject, whole: Whole, fresh: Fresh) -> None:
    name = data.draw(st.sampled_from(NAMES))
    config, folder = copy.deepcopy(models()[name].config), fresh()
    for path in data.draw(st.lists(st.sampled_from([*places(config)]), min_size=1, max_size=3, unique=True)):
        try:
            put(config, path, data.draw(VALUES))
        except (TypeError, KeyError, IndexError):  # inside what is another value by now
            continue
    (folder / CONFIG).write_text(json.dumps(config))
    os.link(whole(name) / WEIGHTS, folder / WEIGHTS)
    opened(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_a_word_is_refused_by_its_key(name: str, whole: Whole, fresh: Fresh) -> None:
    config = models()[name].config
    numbers = {key for key, value in config.items() if type(value) in (int, float) and key in whole_of_use(config)}
    assert len(numbers) > 6
    for key in sorted(numbers):
        folder = fresh()
        (folder / CONFIG).write_text(json.dumps({**config, key: "word"}))
        os.link(whole(name) / WEIGHTS, folder / WEIGHTS)
        assert f"'{key}'" in opened(folder), key


def whole_of_use(config: dict[str, Any]) -> set[str]:
    """Keys of a config that say how a model is computed, rather than how it was made or what its tokens mean."""
    made = ("dropout", "_pdrop", "_token_id", "initializer_range", "router_aux_loss_coef", "router_jitter_noise", "pretraining_tp")
    return {key for key in config if not key.endswith(made) and key[0] != "_"} - {
        "max_window_layers",
        "no_rope_layer_interval",
        "decoder_sparse_step",
    }


@pytest.mark.fault("F12")
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_weights_with_another_directory_open_or_are_refused_in_one_line(data: st.DataObject, whole: Whole, fresh: Fresh) -> None:
    name = data.draw(st.sampled_from(NAMES))
    content, folder = (whole(name) / WEIGHTS).read_bytes(), fresh()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if data.draw(st.booleans()):
        path = data.draw(st.sampled_from([*places(header)]))
        put(header, path, data.draw(VALUES))
        raw = bytearray(json.dumps(header).encode())
    else:
        raw = bytearray(content[8 : 8 + size])
        at, patch = data.draw(st.integers(0, size - 1)), data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    length = data.draw(st.sampled_from([len(raw), len(raw), len(raw), 0, size + 1, 1 << 40, (1 << 64) - 1]))
    end = data.draw(st.sampled_from([None, None, -1, -5000]))
    (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + raw + content[8 + size :][:end])
    os.link(whole(name) / CONFIG, folder / CONFIG)
    opened(folder)
