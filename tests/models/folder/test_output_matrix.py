"""The output matrix of a folder: the embedding where the file says so, unless one is stored that is another; as transformers has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.models.folder.test_folder import folder_of, refused, rewrite
from tests.reference.folders import Raw, raw
from tests.reference.transformers_vision import models

from quintet.models.files import Map
from quintet.models.folder import names
from quintet.models.folder.config import read_outline
from quintet.models.folder.safetensors import StoredTensor, read_tensors
from quintet.models.opening import open_model

HEAD, EMBEDDING, KEY = "lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"


def stored(folder: Path, name: str) -> Raw:
    path = folder / "model.safetensors"
    found = read_tensors(path, Map(path, 8))[name]
    return found.type, found.shape, bytes(found.data)


def output(folder: Path) -> bytes | None:
    """The output matrix's own bytes; ``None`` = it is the embedding."""
    model = open_model(folder)
    assert model.spec.tied == ("output" not in model.tensors)
    return None if model.spec.tied else model.tensors["output"].data.tobytes()


def test_an_output_matrix_that_is_the_embedding_may_be_there_or_not(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    assert output(rewrite(folder, {HEAD: stored(folder, EMBEDDING)})) is None
    assert output(rewrite(folder, {HEAD: None})) is None
    folder = folder_of(tmp_path)
    assert output(folder) == stored(folder, HEAD)[2]
    assert output(rewrite(folder, {HEAD: stored(folder, EMBEDDING)})) == stored(folder, EMBEDDING)[2]
    assert "tensor 'lm_head.weight' is missing" in refused(rewrite(folder, {HEAD: None}))


def test_one_that_is_stored_and_differs_counts_whatever_the_file_says_of_the_embedding(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    assert output(folder) == stored(folder, HEAD)[2] != stored(folder, EMBEDDING)[2]
    type_, shape, data = stored(folder, EMBEDDING)
    other = bytearray(data)
    other[-2] ^= 1  # the last number, a little
    assert output(rewrite(folder, {HEAD: (type_, shape, bytes(other))})) == bytes(other)
    rewrite(folder, {HEAD: raw(np.ones((shape[0] + 1, shape[1]), np.float32))})
    assert f"the shape of tensor 'lm_head.weight' must be {[*shape]}, got {[shape[0] + 1, shape[1]]}" in refused(folder)


def test_one_of_another_type_is_the_embedding_if_its_numbers_are(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tie_word_embeddings=True)
    _, shape, data = stored(folder, EMBEDDING)
    values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    assert output(rewrite(folder, {HEAD: raw(values)})) is None
    more = values.copy()
    more[-1, -1] += 1
    assert output(rewrite(folder, {HEAD: raw(more)})) == more.tobytes()


def test_matrices_are_compared_some_rows_at_a_time_to_their_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(35, dtype=np.float32).reshape(7, 5)
    signs = np.where(values == 0, np.float32(-0.0), values)

    def tensor(of: npt.NDArray[np.float32]) -> StoredTensor:
        return StoredTensor("a", "F32", of.shape, memoryview(of.tobytes()))

    for numbers in (1, 5, 10, 11, 35, 100):
        monkeypatch.setattr(names, "COMPARED", numbers)
        assert names.same(tensor(values), tensor(signs)), "0 is -0"
        assert not names.same(tensor(values), tensor(values.reshape(5, 7)))
        for row in range(7):
            other = values.copy()
            other[row, 4] = -1
            assert not names.same(tensor(values), tensor(other))


SIZES = {
    **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"max_position_embeddings": 64, "vocab_size": 100},
}


@pytest.mark.parametrize(("name", "left_out"), [("idefics3", False), ("smolvlm", False), ("gemma3", True), ("mistral3", True)])
def test_of_a_model_that_sees_the_whole_says_it_whatever_its_language_model_says(name: str, left_out: bool) -> None:
    for said, want in ({}, left_out), ({KEY: None}, False), ({KEY: True}, True), ({KEY: False}, False):
        for within in {}, {KEY: None}, {KEY: True}, {KEY: False}:
            assert read_outline({"model_type": name, **said, "text_config": {**SIZES, **within}}).tied is want


def test_a_folder_that_sees_has_the_output_matrix_that_its_whole_asks_for(tmp_path: Path) -> None:
    folder = models()["idefics3"].write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"][KEY] = True
    (folder / "config.json").write_text(json.dumps(config))
    assert output(folder) == stored(folder, HEAD)[2]
