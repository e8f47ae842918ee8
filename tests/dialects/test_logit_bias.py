"""``logit_bias``: token ids as object keys, in the one spelling that JSON gives a number."""

from __future__ import annotations

import pytest

from quintet.dialects.fields import MAX_TOKEN_ID, LogitBias
from quintet.errors import BadRequest

KIND = LogitBias(1024)


def test_pairs_come_as_ids_and_numbers() -> None:
    assert KIND.read("logit_bias", {"50256": -100, "7": 1.5, "0": 100}) == ((50256, -100.0), (7, 1.5), (0, 100.0))
    assert KIND.read("logit_bias", {}) == ()
    assert KIND.read("logit_bias", {str(MAX_TOKEN_ID): 0}) == ((MAX_TOKEN_ID, 0.0),)


ODD = ["-1", "1.5", " 12 ", "12 ", "+5", "1_000", "\u0661\u0662", "1e3", "07", "00", "", "9" * 5000]
ODD += [str(MAX_TOKEN_ID + 1), "0x10", "a", "1\n"]


@pytest.mark.fault("A06")
@pytest.mark.parametrize("key", ODD)
def test_any_other_spelling_of_a_key_is_refused(key: str) -> None:
    with pytest.raises(BadRequest, match="plain decimal digits") as caught:
        KIND.read("logit_bias", {"1": 0, key: 1})
    assert caught.value.param == "logit_bias"
    assert len(str(caught.value)) < 200


@pytest.mark.fault("A06")
@pytest.mark.parametrize("bias", [101, -100.5, True, "5", None, [], {}])
def test_a_bias_is_a_number_in_range_and_the_error_names_its_key(bias: object) -> None:
    with pytest.raises(BadRequest) as caught:
        KIND.read("logit_bias", {"12": bias})
    assert caught.value.param == "logit_bias.12"


@pytest.mark.fault("B05")
def test_the_number_of_keys_is_bounded() -> None:
    KIND.read("logit_bias", {str(token): 1 for token in range(1024)})
    with pytest.raises(BadRequest, match="at most 1024 token ids"):
        KIND.read("logit_bias", {str(token): 1 for token in range(1_000_000)})


@pytest.mark.parametrize("value", [[], "5", 5, True])
def test_it_is_an_object(value: object) -> None:
    with pytest.raises(BadRequest, match="must be an object"):
        KIND.read("logit_bias", value)
