"""GGUF files: what a good one means, and that nothing in a bad one gets past a ``ModelError`` of one line."""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.tiny_model import FAMILIES, TinySpec, write_tiny

from quintet.errors import ModelError
from quintet.models import ggml
from quintet.models.gguf import MIN_SIZE, TENSOR_TYPES, open_model, read_metadata
from quintet.models.tokenizer import build_tokenizer

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 5
HEAD = HIDDEN // HEADS

KEYS: dict[str, Any] = {
    "general.name": "tiny",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "<|end|>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
}

SHAPES: dict[str, tuple[int, ...]] = {  # as numpy has them: rows first
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
    "blk.0.attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (FFN, HIDDEN),
    "blk.0.ffn_up.weight": (FFN, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, FFN),
}


def put(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write(path: Path, keys: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, architecture: str = "llama") -> Path:
    """A tiny model; ``keys`` and ``tensors`` (a shape, or an array) are put over the defaults, ``None`` removes one."""
    writer = gguf.GGUFWriter(path, architecture)
    values = {key.replace("llama.", f"{architecture}."): value for key, value in KEYS.items()} | (keys or {})
    for key, value in values.items():
        if value is not None:
            put(writer, key, value)
    rng = np.random.default_rng(0)
    for name, shape in (SHAPES | (tensors or {})).items():
        if shape is not None:
            data = shape if isinstance(shape, np.ndarray) else np.asarray(rng.standard_normal(shape), np.float32)
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path: Path) -> str:
    """The error of opening ``path``; it is one line that begins with the file's name."""
    with pytest.raises(ModelError) as error:
        open_model(path)
    text = str(error.value)
    assert text.startswith(f"{path.name}: ")
    assert "\n" not in text
    assert len(text) < 600
    return text


@pytest.mark.parametrize("tiny", FAMILIES, ids=lambda tiny: str(tiny.name))
def test_every_family_opens_with_the_sizes_it_was_written_with(tmp_path: Path, tiny: TinySpec) -> None:
    spec = open_model(write_tiny(tmp_path / "m.gguf", tiny)).spec
    assert (spec.architecture, spec.name, spec.context, len(spec.layers)) == (tiny.architecture, tiny.name, tiny.context, tiny.layers)
    assert (spec.hidden, spec.heads, spec.kv_heads, spec.head_dim) == (tiny.hidden, tiny.heads, tiny.kv_heads, tiny.head_dim)
    assert (spec.ffn, spec.vocab, spec.tied) == (tiny.ffn, tiny.vocab, tiny.tied)
    assert spec.norm_eps == pytest.approx(1e-5)
    assert {layer.qkv_bias for layer in spec.layers} == {tiny.biased}
    assert spec.interleaved == (tiny.architecture in ("llama", "mistral3", "granite", "granitemoe", "smollm3"))
    rope = spec.ropes[0]
    assert rope.dim == (tiny.rotated or tiny.head_dim)
    assert rope.base == tiny.rope.get("freq_base", 10000.0)
    assert rope.scaling == {"longrope": "none"}.get(found := tiny.rope.get("scaling.type", "none"), found)
    assert rope.factor == tiny.rope.get("scaling.factor", 1.0)
    assert rope.original_context == tiny.rope.get("scaling.original_context_length", tiny.context)
    assert rope.attn_factor == pytest.approx(tiny.rope.get("scaling.attn_factor", 1.0))
    assert rope.beta_fast == tiny.rope.get("scaling.yarn_beta_fast", 32.0)
    assert len(rope.freq_factors) == (rope.dim // 2 if tiny.freq_factors or tiny.long_factors else 0)


@pytest.mark.parametrize("tiny", FAMILIES, ids=lambda tiny: str(tiny.name))
def test_tensors_are_the_bytes_that_the_library_reads(tmp_path: Path, tiny: TinySpec) -> None:
    path = write_tiny(tmp_path / "m.gguf", tiny)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    names = {"embed": "token_embd", "output": "output", "output_norm": "output_norm"}
    layer = {"o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "q": "attn_q", "k": "attn_k", "v": "attn_v"}
    layer |= {"post_attn_norm": "post_attention_norm", "post_ffn_norm": "post_ffw_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    layer |= {"router": "ffn_gate_inp", **{f"{name}_exps": f"ffn_{name}_exps" for name in ("gate", "up", "down")}}
    if tiny.experts[0]:
        layer |= {name: f"ffn_{name}_shexp" for name in ("gate", "up", "down")}
    layer |= {"sinks": "attn_sinks"}
    if tiny.norms[1] == "post_attention_norm":
        layer["ffn_norm"] = "post_attention_norm"
    if tiny.fused:
        layer |= {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up"}
    found: dict[str, bytes] = {}  # what is read of each, one after the other
    for name, ours in open_model(path).tensors.items():
        index, _, part = name.rpartition(".")
        stem = part.removesuffix("_bias")
        full = (f"blk.{index}.{layer.get(stem, stem)}" if index else names[stem]) + (".bias" if part.endswith("_bias") else ".weight")
        want = theirs[full]
        assert (ours.type, ours.cols) == (want.tensor_type.name, want.shape[0])
        found[full] = found.get(full, b"") + ours.data.tobytes()
    assert found == {name: tensor.data.tobytes() for name, tensor in theirs.items() if not name.startswith("rope_f")}


def test_block_sizes_of_all_tensor_types_are_known_to_the_library() -> None:
    for name in TENSOR_TYPES:
        assert gguf.GGMLQuantizationType[name] in gguf.GGML_QUANT_SIZES


def test_tensors_are_views_that_outlive_the_file_object(tmp_path: Path) -> None:
    tensors = open_model(write(tmp_path / "m.gguf")).tensors
    embed = tensors["embed"].data
    del tensors
    assert isinstance(embed.obj, mmap.mmap)
    assert embed.readonly
    assert embed.nbytes == VOCAB * HIDDEN * 4
    assert np.isfinite(np.frombuffer(embed, np.float32)).all()


def test_biases_of_a_llama_model_count_if_they_are_there(tmp_path: Path) -> None:
    biases: dict[str, Any] = {"blk.0.attn_q.bias": (HIDDEN,), "blk.0.attn_k.bias": (32,), "blk.0.attn_v.bias": (32,)}
    assert open_model(write(tmp_path / "m.gguf", tensors=biases)).spec.layers[0].qkv_bias
    assert "'blk.0.attn_v.bias' is missing" in refused(write(tmp_path / "n.gguf", tensors=biases | {"blk.0.attn_v.bias": None}))
    assert "'blk.0.attn_q.bias' is missing" in refused(write(tmp_path / "o.gguf", architecture="qwen2"))


def test_scaling_without_a_factor_or_by_one_is_no_scaling_and_the_old_key_counts(tmp_path: Path) -> None:
    def rope(name: str, **keys: Any) -> tuple[str, float]:
        found = open_model(
            write(tmp_path / name, {f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()})
        ).spec.ropes[0]
        return found.scaling, found.factor

    assert rope("a", scaling__type="linear", scaling__factor=1.0) == ("none", 1.0)
    assert rope("b", scaling__type="none", scaling__factor=4.0) == ("none", 1.0)
    assert rope("c", scale_linear=2.0) == ("linear", 2.0)
    assert rope("d", scaling__factor=8.0) == ("linear", 8.0)


def test_a_key_that_asks_for_nothing_is_accepted(tmp_path: Path) -> None:
    keys = {"llama.expert_count": 0, "llama.attention.sliding_window": 0, "llama.attention.causal": True, "llama.logit_scale": 1.0}
    assert len(open_model(write(tmp_path / "m.gguf", keys)).spec.layers) == 1


BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"llama.block_count": None}, "'llama.block_count' is missing"),
    ({"llama.block_count": 0}, "'llama.block_count' must be an integer from 1 to"),
    ({"llama.block_count": 2}, "tensor 'blk.1.attn_norm.weight' is missing; a llama model of 2 layers needs it"),
    ({"llama.block_count": 1 << 27}, "'llama.block_count' must be an integer from 1 to 1024, got 134217728"),
    ({"llama.embedding_length": "big"}, "'llama.embedding_length' must be an integer from 1 to 134217728, got 'big'"),
    ({"llama.embedding_length": 128}, "the shape of tensor"),
    ({"llama.context_length": True}, "'llama.context_length' must be an integer"),
    ({"llama.feed_forward_length": [1, 2]}, "'llama.feed_forward_length' must be an integer from 1 to 134217728, got an array of 2"),
    ({"llama.attention.head_count": 3}, "'llama.attention.head_count_kv' must divide the 3 attention heads, got 2"),
    ({"llama.attention.head_count": 6}, "'llama.attention.head_count' must divide the embedding length 64, got 6"),
    ({"llama.attention.key_length": 32}, "the shape of tensor"),
    ({"llama.attention.value_length": 8}, "'llama.attention.value_length' must equal the key length 16"),
    ({"llama.attention.layer_norm_rms_epsilon": None}, "'llama.attention.layer_norm_rms_epsilon' is missing"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "must be a finite number above 0, got nan"),
    ({"llama.rope.freq_base": -1.0}, "'llama.rope.freq_base' must be a finite number above 0, got -1.0"),
    ({"llama.rope.dimension_count": 18}, "'llama.rope.dimension_count' must be even and at most the head dimension 16"),
    ({"llama.rope.scaling.type": "longrope"}, "'llama.rope.scaling.type' must be one of none, linear, yarn"),
    ({"llama.rope.scaling.original_context_length": 1 << 31}, "must be an integer from 1 to 2147483647, got 2147483648"),
    ({"llama.vocab_size": 6}, "'llama.vocab_size' must count as many tokens as 'token_embd.weight' has rows, 5, got 6"),
    ({"tokenizer.ggml.tokens": ["a"]}, "'tokenizer.ggml.tokens' must count as many tokens as 'token_embd.weight' has rows, 5, got 1"),
    ({"llama.expert_count": 8}, "'llama.expert_used_count' is missing"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 9}, "'llama.expert_used_count' must be an integer from 1 to 8, got 9"),
    ({"llama.expert_count": 5000}, "'llama.expert_count' must be an integer from 0 to 4096, got 5000"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "tensor 'blk.0.ffn_gate_inp.weight' is missing"),
    ({"llama.expert_gating_func": 2}, "'llama.expert_gating_func' asks for something that is not implemented, got 2"),
    ({"llama.attention.sliding_window": 4096}, "'llama.attention.sliding_window' asks for something that is not implemented, got 4096"),
    ({"llama.attn_logit_softcapping": 50.0}, "'llama.attn_logit_softcapping' asks for something that is not implemented, got 50.0"),
    ({"llama.attention.max_alibi_bias": 8.0}, "'llama.attention.max_alibi_bias' asks for something that is not implemented"),
    ({"llama.attention.causal": False}, "'llama.attention.causal' asks for something that is not implemented, got false"),
    ({"llama.some_new_thing": [1]}, "'llama.some_new_thing' asks for something that is not implemented, got an array of 1"),
    ({"general.alignment": 24}, "'general.alignment' must be a power of two, got 24"),
    ({"split.count": 3}, "'split.count' asks for files that are named NAME-00001-of-00003.gguf and so on, got 3"),
]


@pytest.mark.parametrize(("keys", "says"), BAD_KEYS, ids=[f"{next(iter(keys))}-{next(iter(keys.values()))}" for keys, _ in BAD_KEYS])
def test_a_wrong_key_is_refused_by_name_and_value(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    assert says in refused(write(tmp_path / "m.gguf", keys))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", architecture="mamba")
    assert "'general.architecture' must be one of the supported llama, qwen2, qwen3" in refused(path)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"blk.0.ffn_up.weight": None}, "tensor 'blk.0.ffn_up.weight' is missing"),
        ({"token_embd.weight": None}, "tensor 'token_embd.weight' is missing"),
        ({"blk.0.attn_k.weight": (HIDDEN, HIDDEN)}, "the shape of tensor 'blk.0.attn_k.weight' must be [64, 32], got [64, 64]"),
        ({"blk.0.attn_norm.weight": (2, HIDDEN)}, "the shape of tensor 'blk.0.attn_norm.weight' must be [64], got [64, 2]"),
        ({"blk.0.ffn_gate_exps.weight": (2, 8, 8)}, "tensor 'blk.0.ffn_gate_exps.weight' is not part of a llama model"),
        ({"blk.0.attn_q_norm.weight": (16,)}, "tensor 'blk.0.attn_q_norm.weight' is not part of a llama model"),
        ({"blk.0.ffn_norm.weight": np.zeros(HIDDEN, np.int32)}, "the type of tensor 'blk.0.ffn_norm.weight' must be one of F32"),
        ({"rope_freqs.weight": (4,)}, "the shape of tensor 'rope_freqs.weight' must be [8], got [4]"),
        ({"rope_freqs.weight": np.zeros(8, np.float32)}, "tensor 'rope_freqs.weight' must hold finite numbers above 0"),
        ({"rope_freqs.weight": np.ones(8, np.float16)}, "the type of tensor 'rope_freqs.weight' must be F32, got 'F16'"),
    ],
)
def test_wrong_tensors_are_refused_by_name(tmp_path: Path, tensors: dict[str, Any], says: str) -> None:
    assert says in refused(write(tmp_path / "m.gguf", tensors=tensors))


def test_what_is_not_a_gguf_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path / "none.gguf")
    assert "cannot be read: Is a directory" in refused(tmp_path)
    for name, content, says in [
        ("empty", b"", "has only 0 bytes"),
        ("page", b"<!doctype html><html>" * 9, "is not GGUF"),
        ("old", struct.pack("<IIQQ", 0x46554747, 1, 0, 0), "the GGUF version must be one of (2, 3)"),
        ("swapped", struct.pack(">IIQQ", 0x47475546, 3, 0, 0), "the GGUF version must be one of (2, 3) (little-endian)"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert says in refused(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    with open(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)):  # noqa: PTH123 - a writer, so that opening does not wait
        assert "is not a regular file" in refused(tmp_path / "pipe")


def header(*pairs: bytes, tensors: bytes = b"", tensor_count: int = 0, keys: int | None = None) -> bytes:
    return struct.pack("<IIQQ", 0x46554747, 3, tensor_count, len(pairs) if keys is None else keys) + b"".join(pairs) + tensors


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10
HUGE = (1 << 64) - 1


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims) if n_dims is None else n_dims, *dims, kind, offset)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header(keys=HUGE), "the number of keys must be at most 65536"),
        (header(tensor_count=HUGE), "the number of tensors must be at most 65536"),
        (header(keys=60_000), "the number of keys is 60000, which needs at least 780000 bytes but the file has 0 left"),
        (header(text(b"a", HUGE) + b"xxxxxxx"), "the length of key 0 must be at most"),
        (header(text(b"a", 1000) + b"xxxxxxx"), "key 0 needs 1000 bytes but the file has 8 left"),
        (header(pair(b"a", 99, b"xxxxxxxx")), "the type of 'a' is not a GGUF value type, got 99"),
        (header(pair(b"a\nb", 99, b"xxxxxxxx")), "the type of 'a\\nb' is not a GGUF value type, got 99"),
        (header(pair(b"a", BOOL, b"\2")), "'a' must be 0 or 1, being a boolean, got 2"),
        (header(pair(b"", U32, b"1234")), "key 0 must be a new, non-empty name"),
        (header(*[pair(b"a", U32, b"1234")] * 2), "key 1 must be a new, non-empty name, got 'a'"),
        (header(pair(b"a\xff", U32, b"1234")), "key 0 must be UTF-8"),
        (header(pair(b"a", STRING, text(b"\xff\xff"))), "'a' must be UTF-8"),
        (header(pair(b"a", ARRAY, struct.pack("<IQ", U64, HUGE))), "the length of 'a' must be at most"),
        (header(pair(b"a", ARRAY, struct.pack("<IQ", STRING, 4_000_000))), "the length of 'a' is 4000000, which needs at least"),
        (header(pair(b"a", ARRAY, struct.pack("<IQ", U32, 9_000))), "36000 bytes but the file has 0 left at byte 49: it is truncated"),
        (header(pair(b"a", ARRAY, struct.pack("<IQQ", STRING, 1, HUGE))), "entry 0 of 'a' runs past the end: "),
        (header(pair(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(20))), "'a' is an array of arrays"),
        (header(tensors=tensor(b"t", [1] * 5), tensor_count=1), "the number of dimensions of tensor 't' must be from 1 to 4, got 5"),
        (header(tensors=tensor(b"t", [0, 4]), tensor_count=1), "the shape of tensor 't' must have dimensions from 1 up"),
        (header(tensors=tensor(b"t", [1 << 32, 1 << 32]), tensor_count=1), "the shape of tensor 't' must have dimensions from 1 up"),
        (header(tensors=tensor(b"t", [4], 77), tensor_count=1), "the type of tensor 't' is not a known tensor type, got 77"),
        (header(tensors=tensor(b"t", [33], 8), tensor_count=1), "the first dimension of tensor 't' must be a multiple of 32"),
        (header(tensors=tensor(b"t", [4], 0, 5), tensor_count=1), "the offset of tensor 't' must be a multiple of 32, got 5"),
        (header(tensors=tensor(b"t", [4], 0, HUGE - 31), tensor_count=1), "tensor 't' ends at byte"),
        (header(tensors=tensor(b"t", [1 << 40]), tensor_count=1), "tensor 't' ends at byte 4398046511104 of"),
        (header(tensors=tensor(b"t", [16]) * 2 + bytes(200), tensor_count=2), "the tensor list names a tensor twice"),
        (header(tensors=tensor(b"t", [16]) + tensor(b"u", [1], 0, 32) + bytes(200), tensor_count=2), "the offset of tensor 'u' lies in"),
    ],
)
def test_a_hostile_header_is_refused_before_anything_is_allocated(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert says in refused(path)


def test_every_truncation_is_refused_as_one(tmp_path: Path) -> None:
    content = write(tmp_path / "m.gguf").read_bytes()
    header_end = content.rindex(b"blk.0.ffn_down.weight") + 60
    for size in itertools.chain(range(0, header_end, 3), range(header_end, len(content) - 31, 4001), [len(content) - 32]):
        path = tmp_path / "cut.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(content[:size])
        assert ("truncated or damaged" if size >= MIN_SIZE else "a download was cut short") in refused(path)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], Path]]:
    """Writes content to a new file each time: an old one may still be mapped."""
    folder, number = tmp_path_factory.mktemp("fuzz"), itertools.count()

    def put_file(content: bytes) -> Path:
        path = folder / f"{next(number)}.gguf"
        path.write_bytes(content)
        return path

    yield put_file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("good") / "m.gguf").read_bytes()


PATCHES = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from([0, 1, 2, 255, 1 << 31, (1 << 32) - 1]).map(lambda n: struct.pack("<I", n)),
    st.sampled_from([0, 1, 1 << 20, 1 << 31, 1 << 40, 1 << 62, 1 << 63, HUGE]).map(lambda n: struct.pack("<Q", n)),
)


@pytest.mark.fault("F12")
@settings(max_examples=int(os.environ.get("QUINTET_FUZZ", "400")), deadline=None)
@given(data=st.data())
def test_a_damaged_file_opens_or_is_a_model_error_and_never_costs_much_memory(
    data: st.DataObject, good: bytes, fresh: Callable[[bytes], Path]
) -> None:
    content = bytearray(good)
    header_end = good.rindex(b"blk.0.ffn_down.weight") + 60
    for _ in range(data.draw(st.integers(1, 3))):
        at, patch = data.draw(st.integers(0, header_end)), data.draw(PATCHES)
        content[at : at + len(patch)] = patch
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = fresh(bytes(content))
    tracemalloc.start()
    try:
        opened = open_model(path)
        build_tokenizer(opened.metadata).encode("abc <|end|>")
    except ModelError as error:
        assert str(error).startswith(f"{path.name}: ")
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        path.unlink()
    assert peak < 32 << 20


def test_a_vocabulary_file_has_metadata_but_is_no_model(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tensors=dict.fromkeys(SHAPES))
    assert read_metadata(path).text("general.name") == "tiny"
    assert "tensor 'token_embd.weight' is missing" in refused(path)


def test_the_numbers_of_types_are_those_of_the_library() -> None:
    sizes = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert sizes == ggml.TYPES
    assert {kind.name: kind.value for kind in gguf.GGUFValueType} == {kind.name: kind.value for kind in ggml.ValueType}
    assert (gguf.GGUF_MAGIC, gguf.GGUF_DEFAULT_ALIGNMENT) == (ggml.MAGIC, ggml.ALIGNMENT)
