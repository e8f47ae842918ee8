"""Files of every family that were tampered with: they open, or are refused in one line that names what is wrong; never more than that."""

from __future__ import annotations

import itertools
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gguf
import pytest
from gguf import GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.e2e.paged import logits_of, run_alone, whole
from tests.reference.tiny_model import FAMILIES, TinySpec, random_ids, write_tiny
from tests.support.loading import native_loader

from quintet.errors import ModelError
from quintet.models.families import FAMILIES as READABLE
from quintet.models.gguf import open_model
from quintet.models.reading import EXPERTS, LOCAL_BASE, PATTERN, READ, WINDOW

EXAMPLES = int(os.environ.get("QUINTET_FUZZ", "100"))
MEMORY = 32 << 20

Value = tuple[GGUFValueType, bytes]
"""As it lies in a file."""


@dataclass(frozen=True)
class Parts:
    """A file, cut so that a key can be put in another's place.

    Args:
        keys: the bytes of each type and value, by name.
        infos: the tensors' directory.
        count: tensors in it.
        data: what follows it, from an aligned byte on.
    """

    keys: dict[str, bytes]
    infos: bytes
    count: int
    data: bytes

    def write(self, path: Path, changes: Mapping[str, bytes | None]) -> Path:
        """The file with other keys; ``None`` leaves one out."""
        keys = {name: value for name, value in {**self.keys, **changes}.items() if value is not None}
        pairs = b"".join(text(name.encode()) + value for name, value in keys.items())
        head = struct.pack("<4sIQQ", b"GGUF", 3, self.count, len(keys)) + pairs + self.infos
        path.write_bytes(head + bytes(-len(head) % 32) + self.data)
        return path


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def cut(content: bytes, path: Path) -> Parts:
    reader = gguf.GGUFReader(path)
    fields = [field for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    starts = [field.offset for field in fields] + [reader.tensors[0].field.offset]
    keys = {field.name: content[start + 8 + len(field.name) : end] for field, start, end in zip(fields, starts, starts[1:], strict=False)}
    last = reader.tensors[-1].field
    end = last.offset + sum(part.nbytes for part in last.parts)
    return Parts(keys, content[starts[-1] : end], len(reader.tensors), content[reader.data_offset :])


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinySpec], Parts]:
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def find(spec: TinySpec) -> Parts:
        path = write_tiny(folder / f"{spec.name}.gguf", spec)
        return cut(path.read_bytes(), path)

    return find


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """A new path each time: what was there before may still be mapped."""
    folder, number = tmp_path_factory.mktemp("tampered"), itertools.count()
    yield lambda: folder / f"{next(number)}.gguf"


def understood(spec: TinySpec) -> list[str]:
    """Every key that its family reads, whether the file has it or not."""
    family = READABLE[spec.architecture]
    names = READ | family.reads | family.ignored | (EXPERTS if family.experts else set())
    names |= {WINDOW, PATTERN, LOCAL_BASE} if family.windows else set()
    return sorted(f"{spec.architecture}.{name}" for name in names)


def opened(path: Path) -> str:
    """Open a file: the error that it is refused with, or an empty text."""
    tracemalloc.start()
    try:
        open_model(path)
    except ModelError as error:
        return str(error)
    else:
        return ""
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        path.unlink()
        assert peak < MEMORY


def said_in_one_line(error: str, path: Path) -> None:
    assert not error or (error.startswith(f"{path.name}: ") and "\n" not in error and len(error) < 600)


def scalar(kind: GGUFValueType, code: str, value: float) -> bytes:
    return struct.pack(f"<I{code}", kind, value)


WORD = struct.pack("<I", GGUFValueType.STRING) + text(b"word")
NOT_NUMBERS = [
    WORD,
    struct.pack("<II", GGUFValueType.ARRAY, GGUFValueType.STRING) + struct.pack("<Q", 2) + text(b"a") * 2,
    struct.pack("<IIQ", GGUFValueType.ARRAY, GGUFValueType.FLOAT32, 0),
    scalar(GGUFValueType.FLOAT32, "f", float("nan")),
    scalar(GGUFValueType.FLOAT64, "d", float("inf")),
    scalar(GGUFValueType.FLOAT32, "f", -1.0),
    scalar(GGUFValueType.INT64, "q", -(1 << 62)),
]
"""What no key takes that is a number, an array of numbers, a flag or one of few words."""


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.name)
def test_a_key_of_another_kind_is_refused_by_its_name(
    spec: TinySpec, parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    """One value for each key; over the families a key meets several."""
    parts, prefix = parts_of(spec), f"{spec.architecture}."
    ignored = {prefix + name for name in READABLE[spec.architecture].ignored}
    found = set(understood(spec)) & parts.keys.keys()
    found |= {prefix + PATTERN, prefix + LOCAL_BASE} if prefix + WINDOW in parts.keys.keys() - ignored else set()
    for key, value in zip(sorted(found - ignored), itertools.cycle(NOT_NUMBERS[spec.layers :] + NOT_NUMBERS[: spec.layers])):
        path = parts.write(fresh(), {key: value})
        error = opened(path)
        said_in_one_line(error, path)
        assert f"'{key}'" in error, (key, value)


OLMO_3 = next(spec for spec in FAMILIES if spec.name == "olmo3")


@pytest.mark.parametrize("kind", [GGUFValueType.BOOL, GGUFValueType.UINT8])
def test_a_file_may_list_the_layers_with_a_window(
    kind: GGUFValueType, parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    """llama.cpp's converters list them as booleans."""
    seen = [True, False, True, True, False]  # not those that the architecture has without a list
    listed = struct.pack("<IIQ", GGUFValueType.ARRAY, kind, len(seen)) + bytes(seen)
    path = parts_of(OLMO_3).write(fresh(), {f"olmo2.{PATTERN}": listed})
    assert [bool(layer.window) for layer in open_model(path).spec.layers] == seen


YARNS_OWN = 1.1386294361119891  # 1 + 0.1 ln 4


@pytest.mark.parametrize(
    "names",
    [("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow"), ("attn_factor",), ("attn_factor", "yarn_attn_factor")],
    ids=["now", "of 2025", "both"],
)
def test_yarns_own_factor_counts_once_in_olmo_3_however_converters_write_it(
    names: tuple[str, ...], parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    """Its config.json says ``"attention_factor": 1.2079441541679836`` of a factor of 8, which is what transformers multiplies by."""
    values = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    keys = {f"olmo2.rope.scaling.{name}": scalar(GGUFValueType.FLOAT32, "f", values.get(name, YARNS_OWN)) for name in names}
    plain, path = parts_of(OLMO_3).write(fresh(), {}), parts_of(OLMO_3).write(fresh(), keys)
    assert open_model(path).spec.ropes == open_model(plain).spec.ropes


def test_another_factor_of_yarns_is_refused(parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]) -> None:
    """transformers takes it, llama.cpp does not: a file with it is two models."""
    key = "olmo2.rope.scaling.yarn_attn_factor"
    path = parts_of(OLMO_3).write(fresh(), {key: scalar(GGUFValueType.FLOAT32, "f", 1.25)})
    said = f"'{key}' must be 1, or 1.138629 as YaRN itself has it; others are not implemented, got 1.25."
    assert opened(path) == f"{path.name}: {said}"


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 7, 31, 33, 255, 1024, 4097, 1 << 16, 1 << 27, 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1]).map(
        lambda n: scalar(GGUFValueType.UINT64, "Q", n)
    ),
    st.integers(-(1 << 31), (1 << 31) - 1).map(lambda n: scalar(GGUFValueType.INT32, "i", n)),
    st.floats(width=32).map(lambda x: scalar(GGUFValueType.FLOAT32, "f", x)),
    st.floats().map(lambda x: scalar(GGUFValueType.FLOAT64, "d", x)),
    st.integers(0, 255).map(lambda n: scalar(GGUFValueType.BOOL, "B", n)),
)
ARRAYS = st.tuples(
    st.sampled_from([(GGUFValueType.UINT8, 1), (GGUFValueType.BOOL, 1), (GGUFValueType.INT32, 4), (GGUFValueType.FLOAT32, 4)]),
    st.binary(max_size=64),
    st.sampled_from([0, 0, 0, 1, 1 << 20, 1 << 62]),
).map(lambda it: struct.pack("<IIQ", GGUFValueType.ARRAY, it[0][0], len(it[1]) // it[0][1] + it[2]) + it[1])
WORDS = st.sampled_from([b"", b"none", b"linear", b"yarn", b"longrope", b"llama3", b"\xff", b"word\n" * 200]).map(
    lambda word: struct.pack("<I", GGUFValueType.STRING) + text(word)
)


@pytest.mark.fault("F12")
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_keys_with_other_values_open_or_are_refused_in_one_line(
    data: st.DataObject, parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    spec = data.draw(st.sampled_from(FAMILIES))
    parts = parts_of(spec)
    names = st.sampled_from([*understood(spec), *parts.keys])
    changes = data.draw(st.dictionaries(names, st.one_of(NUMBERS, NUMBERS, ARRAYS, WORDS, st.none()), min_size=1, max_size=3))
    path = parts.write(fresh(), changes)
    said_in_one_line(opened(path), path)


EXTREMES = [
    *(scalar(GGUFValueType.FLOAT32, "f", x) for x in (0.0, 1e-38, 1e-20, 7.5, 1e20, 3e38)),
    *(scalar(GGUFValueType.FLOAT64, "d", x) for x in (5e-324, 1e300)),
    *(scalar(GGUFValueType.UINT64, "Q", n) for n in (1, 2, 3, 64, 1 << 16, 1 << 27, (1 << 31) - 1, 1 << 31)),
]


@pytest.mark.fault("F12")
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_what_opens_with_other_values_is_run_without_harm(
    data: st.DataObject, parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    """The numbers mean nothing any more, but they come, from memory that is the model's."""
    spec = data.draw(st.sampled_from(FAMILIES))
    keys = st.sampled_from([key for key in understood(spec) if not key.endswith("context_length") or "original" in key])
    path = parts_of(spec).write(fresh(), data.draw(st.dictionaries(keys, st.sampled_from(EXTREMES), min_size=1, max_size=2)))
    try:
        runner = native_loader(path, threads=1, context=64)(lambda _: None).runner
    except ModelError:
        return
    finally:
        path.unlink()
    runner.allocate(2)
    ids = random_ids(spec, 20)
    assert logits_of(runner, run_alone(runner, whole(ids))).shape == (20, spec.vocab)


PATCHES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from([0, 1, 2, 8, 39, 41, 255, 1 << 31, (1 << 32) - 1]).map(lambda n: struct.pack("<I", n)),
    st.sampled_from([0, 1, 31, 32, 1 << 20, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]).map(lambda n: struct.pack("<Q", n)),
)


@pytest.mark.fault("F12")
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_directories_with_other_bytes_open_or_are_refused_in_one_line(
    data: st.DataObject, parts_of: Callable[[TinySpec], Parts], fresh: Callable[[], Path]
) -> None:
    """Names, shapes, types and offsets of the tensors, which are a family's own."""
    parts = parts_of(data.draw(st.sampled_from(FAMILIES)))
    infos = bytearray(parts.infos)
    for _ in range(data.draw(st.integers(1, 3))):
        at, patch = data.draw(st.integers(0, len(infos) - 1)), data.draw(PATCHES)
        infos[at : at + len(patch)] = patch
    path = Parts(parts.keys, bytes(infos), parts.count, parts.data[: data.draw(st.sampled_from([None, -1, 1000]))]).write(fresh(), {})
    said_in_one_line(opened(path), path)
