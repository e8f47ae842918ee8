"""Which model a name means: names, aliases, patterns, and the forms of the providers' clients."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.engines.names import Found, Names, matches, name_models
from quintet.errors import ModelError

FORM = r"accounts/[^/]+/models/(.+)"
SERVED = name_models([("small", "tiny"), ("big",)], [("gpt", "big"), ("llama-*", "tiny"), ("*", "big")])


def test_without_a_name_the_first_model_answers() -> None:
    assert SERVED.find("") == SERVED.default == Found("small", "small")


@pytest.mark.parametrize(("name", "model"), [("small", "small"), ("tiny", "small"), ("big", "big"), ("gpt", "big")])
def test_a_name_or_an_alias_answers_with_itself(name: str, model: str) -> None:
    assert SERVED.find(name) == Found(model, name)


def test_patterns_count_in_their_order_and_answer_with_the_name_that_was_asked_for() -> None:
    assert SERVED.find("llama-3.1-8b") == Found("small", "llama-3.1-8b")
    assert SERVED.find("llama") == Found("big", "llama")


def test_an_unknown_name_is_nothing() -> None:
    assert name_models([("small",)]).find("large") is None


def test_a_form_of_the_provider_is_less_than_the_name_as_it_was_sent() -> None:
    names = name_models([("small",), ("accounts/a/models/small",)])
    assert names.find("accounts/a/models/small", (FORM,)) == Found("accounts/a/models/small", "accounts/a/models/small")
    assert names.find("accounts/b/models/small", (FORM,)) == Found("small", "small")
    assert names.find("accounts/b/models/small") is None
    assert names.find("accounts/c/models/accounts/b/models/small", (FORM,)) is None, "one form, not one in another"


def test_names_written_out_go_before_patterns_also_in_a_form_of_the_provider() -> None:
    names = name_models([("small",), ("big",)], [("accounts/*", "big"), ("other", "small")])
    assert names.find("accounts/a/models/small", (FORM,)) == Found("small", "small")
    assert names.find("accounts/a/models/other", (FORM,)) == Found("small", "other")
    assert names.find("accounts/a/models/none", (FORM,)) == Found("big", "accounts/a/models/none")


def test_a_pattern_may_be_found_in_a_form_of_the_provider() -> None:
    names = name_models([("small",)], [("llama-*", "small")])
    assert names.find("accounts/a/models/llama-3", (FORM,)) == Found("small", "llama-3")


def test_names_are_listed_in_order_and_patterns_are_not() -> None:
    assert list(SERVED.exact) == ["small", "tiny", "big", "gpt"]


@pytest.mark.parametrize(
    ("models", "aliases", "said"),
    [
        ([("a",), ("a",)], [], "the name 'a' is given twice; write NAME=REFERENCE"),
        ([("a", "a")], [], "the name 'a' is given twice"),
        ([("a",)], [("a", "a")], "the name 'a' is given twice"),
        ([("a",)], [("b", "a"), ("b", "a")], "the name 'b' is given twice"),
        ([("a",)], [("b*", "a"), ("b*", "a")], "the name 'b\\*' is given twice"),
        ([("a",)], [("b", "c")], "the alias 'b' is for 'c', which is not served here; served: a."),
        ([("a",)], [("b", "a"), ("c", "b")], "the alias 'c' is for 'b', which is not served"),
        ([("a*",)], [], "must not hold \\*, got 'a\\*'"),
        ([("",)], [], "neither empty nor with spaces"),
        ([("a",)], [("", "a")], "neither empty nor with spaces"),
        ([(" a",)], [], "neither empty nor with spaces"),
        ([("a\n",)], [], "must be printable"),
        ([("a\tb",)], [], "must be printable"),
    ],
)
def test_names_that_contradict_are_refused(models: list[tuple[str, ...]], aliases: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        name_models(models, aliases)


@given(st.text("ab*", max_size=8), st.text("ab/\n", max_size=12))
def test_a_pattern_matches_what_the_regular_expression_would(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name, re.DOTALL))


@pytest.mark.parametrize(("pattern", "name"), [("ab*ba", "aba"), ("a*b*b", "ab"), ("a*a*b", "ab"), ("*a*a*", "a")])
def test_no_character_of_a_name_stands_for_two_of_a_pattern(pattern: str, name: str) -> None:
    assert not matches(pattern, name)


def test_a_star_may_stand_for_nothing() -> None:
    assert matches("*a*b*", "ab") and matches("a*b", "ab")


@pytest.mark.fault("A19")
def test_a_hostile_name_or_pattern_takes_no_time() -> None:
    assert not matches("*a" * 4000 + "*b*", "a" * 8000)


_NAME = st.text("abc/-", min_size=1, max_size=4)


@given(st.lists(st.lists(_NAME, min_size=1, max_size=2), min_size=1, max_size=3), st.lists(st.tuples(_NAME, _NAME), max_size=3), _NAME)
def test_every_listed_name_is_found_as_its_own_model_and_nothing_else_without_patterns(
    models: list[list[str]], aliases: list[tuple[str, str]], other: str
) -> None:
    try:
        names = name_models(models, aliases)
    except ModelError:
        return
    firsts = {first for first, *_ in models}
    for name in names.exact:
        found = names.find(name, (FORM,))
        assert found is not None
        assert (found.model in firsts, found.name) == (True, name)
    assert (names.find(other) is None) == (other not in names.exact)


def test_the_values_can_be_made_by_hand() -> None:
    assert Names({"a": "a"}).find("a") == Found("a", "a")
