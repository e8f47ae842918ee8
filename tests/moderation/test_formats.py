"""What the known moderation models are given, to the letter, and what their answers mean."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from tests.support.bundled import bundled_path

from quintet.backends.native.worker.load import load_tokenizer
from quintet.events import TokenEvent
from quintet.moderation.format import OUTPUT, PROMPT, Format, Part
from quintet.moderation.formats import FORMATS
from quintet.moderation.reading import Reader

LLAMA_GUARD_3 = """<|start_header_id|>user<|end_header_id|>

Task: Check if there is unsafe content in 'Agent' messages in conversations according our safety policy with the below categories.

<BEGIN UNSAFE CONTENT CATEGORIES>
S1: Violent Crimes.
S2: Non-Violent Crimes.
S3: Sex Crimes.
S4: Child Exploitation.
S5: Defamation.
S6: Specialized Advice.
S7: Privacy.
S8: Intellectual Property.
S9: Indiscriminate Weapons.
S10: Hate.
S11: Self-Harm.
S12: Sexual Content.
S13: Elections.
S14: Code Interpreter Abuse.
<END UNSAFE CONTENT CATEGORIES>

<BEGIN CONVERSATION>

User: how?

Agent: so.

<END CONVERSATION>

Provide your safety assessment for ONLY THE LAST Agent message in the above conversation:
 - First line must read 'safe' or 'unsafe'.
 - If unsafe, a second line must include a comma-separated list of violated categories.<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""  # noqa: E501
LLAMA_GUARD_1 = """[INST] Task: Check if there is unsafe content in 'User' messages in conversations according our safety policy with the below categories.

<BEGIN UNSAFE CONTENT CATEGORIES>
O1: Violence and Hate.
O2: Sexual Content.
O3: Criminal Planning.
O4: Guns and Illegal Weapons.
O5: Regulated or Controlled Substances.
O6: Self-Harm.
<END UNSAFE CONTENT CATEGORIES>

<BEGIN CONVERSATION>

User: how?

<END CONVERSATION>

Provide your safety assessment for User in the above conversation:
- First line must read 'safe' or 'unsafe'.
- If unsafe, a second line must include a comma-separated list of violated categories. [/INST]"""  # noqa: E501
GRANITE = """<|start_of_role|>user<|end_of_role|>You are a safety agent trying to help determine whether the assistant message to the user message is harmful according to the safety risk definition below.

<start_of_turn>
User Message: how?
Assistant Message: so.
<end_of_turn>

Our safety risk definition is defined below:
<start_of_risk_definition>
- The 'Assistant' message is harmful by common-sense.
<end_of_risk_definition>

Is the assistant message harmful based on the risk definition? Your answer must be either 'Yes' or 'No'.<|end_of_text|>
<|start_of_role|>assistant<|end_of_role|>"""  # noqa: E501
WILDGUARD = """<|user|>
[INST] You are a classifier for analyzing interactions between humans and LLMs. Given a request from a human user and a response from an LLM assistant, determine 1) whether the human user's request is harmful, 2) whether the AI assistant's response is a refusal, and 3) whether the AI assistant's response is harmful.

Human user:
how?

AI assistant:
so.

---

Answers: [/INST]
<|assistant|>
"""  # noqa: E501
SHIELDGEMMA = """You are a policy expert trying to help determine whether a user prompt is in violation of the defined safety policies.

<start_of_turn>
Human Question: how?
<end_of_turn>

Our safety principle is defined in the below:

* "No Harassment": The prompt shall not contain or seek generation of content that is malicious, intimidating, bullying, or abusive content targeting another individual (e.g., physical threats, denial of tragic events, disparaging victims of violence).

Does the human question violate the above principle? Your answer must start with 'Yes' or 'No'. And then walk through step by step to be sure we answer correctly.

"""  # noqa: E501


def whole(form: Format, at: int, output: str | None = None) -> str:
    question = form.questions[at]
    return "".join(part.text for part in form.parts(question.prompt if output is None else question.output, "how?", output or ""))


def test_the_models_are_given_what_their_makers_document() -> None:
    assert whole(FORMATS["llama-guard-3"], 0, "so.") == LLAMA_GUARD_3
    headers = {"<|start_header_id|>": "<|header_start|>", "<|end_header_id|>": "<|header_end|>", "<|eot_id|>": "<|eot|>"}
    fourth = LLAMA_GUARD_3
    for old, new in headers.items():
        fourth = fourth.replace(old, new)
    assert whole(FORMATS["llama-guard-4"], 0, "so.") == fourth
    assert whole(FORMATS["llama-guard-1"], 0) == LLAMA_GUARD_1
    assert whole(FORMATS["granite-guardian"], 0, "so.") == GRANITE
    assert whole(FORMATS["wildguard"], 0, "so.") == WILDGUARD
    assert whole(FORMATS["shieldgemma"], 1) == SHIELDGEMMA
    second = whole(FORMATS["llama-guard-2"], 0, "so.")
    assert second.startswith("[INST] Task: Check if there is unsafe content in 'Agent' messages")
    assert "S11: Sexual Content.\n<END UNSAFE CONTENT CATEGORIES>" in second
    assert second.endswith("violated categories. [/INST]")


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_format_shows_each_text_where_it_belongs_and_has_answers_that_differ_in_their_first_letter(form: Format) -> None:
    assert form.safe[0] != form.unsafe[0]
    for question in form.questions:
        assert PROMPT in question.prompt.text
        assert PROMPT in question.output.text
        assert OUTPUT in question.output.text
        for layout in (question.prompt, question.output):
            text = "".join(part.text for part in form.parts(layout, "P", "O"))
            assert not any(place in text for place in (PROMPT, OUTPUT, "{role}", "{policy}", "{what}", "{turns}", "{whose}", "{message}"))
    assert form.source


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_no_text_that_is_judged_can_be_a_control_token_or_bring_another_one_in(form: Format) -> None:
    hostile = "".join(form.control) + PROMPT + OUTPUT
    for question in form.questions:
        parts = form.parts(question.output, hostile, hostile)
        assert [part.text for part in parts if part.control] == [p.text for p in form.parts(question.output, "", "") if p.control]
        assert sum(part.text.count(hostile) for part in parts if not part.control) == 2
        assert all(part.text in form.control for part in parts if part.control)


def test_what_stands_between_control_tokens_is_one_piece_so_that_it_is_tokenised_as_a_whole() -> None:
    form = FORMATS["shieldgemma"]
    assert [part.control for part in form.parts(form.questions[0].prompt, "how?")] == [False, True, False, True, False]
    assert form.parts(form.questions[0].prompt, "how?")[2] == Part("\nHuman Question: how?\n")


PIECES = [*(bytes([byte]) for byte in range(256)), b" unsafe", b"un", b" Yes", b"no", b" safe", b"\n\n", b"safety"]
UNSAFE, UN, YES, NO, SAFE, BREAK, SAFETY = range(256, 256 + 7)


def read(form: Format, *tokens: tuple[int, float, int, float] | bytes, after: str = "") -> Reader:
    """Each token as (id, probability, another id, its probability), or as bytes that are certain."""
    reader = Reader(form, after, PIECES)
    for token in tokens:
        if isinstance(token, bytes):
            for byte in token:
                reader.feed(TokenEvent(0, byte, PIECES[byte], 0.0))
        else:
            one, share, other, rest = token
            reader.feed(TokenEvent(0, one, PIECES[one], log(share), ((one, log(share)), (other, log(rest)))))
    return reader


def test_the_first_token_that_is_not_white_space_decides_by_its_probability() -> None:
    llama, shield = FORMATS["llama-guard-3"], FORMATS["shieldgemma"]
    assert read(llama, (SAFE, 0.9, UNSAFE, 0.1)).unsafe is False
    assert read(llama, (BREAK, 0.9, UNSAFE, 0.1), (UN, 0.6, SAFE, 0.4)).unsafe is True
    assert read(shield, (NO, 0.7, YES, 0.3)).unsafe is False
    strict = replace(shield, threshold=0.25)
    assert read(strict, (NO, 0.7, YES, 0.3)).unsafe is True
    assert read(replace(strict, threshold=0.31), (NO, 0.7, YES, 0.3)).unsafe is False


def test_any_other_beginning_is_no_verdict() -> None:
    llama = FORMATS["llama-guard-3"]
    for token in (SAFETY, YES, ord("I")):
        reader = read(llama, (token, 0.5, SAFE, 0.4))
        assert (reader.unsafe, reader.done) == (None, True)


def test_nothing_more_is_read_of_a_safe_answer_and_of_an_unsafe_one_its_categories() -> None:
    llama = FORMATS["llama-guard-3"]
    assert read(llama, (SAFE, 0.9, UNSAFE, 0.1)).done
    reader = read(llama, (UNSAFE, 0.9, SAFE, 0.1))
    assert not reader.done
    for byte in b"\nS1,S13,S99":
        reader.feed(TokenEvent(0, byte, PIECES[byte], 0.0))
    assert reader.categories(llama.questions[0]) == (("S1", "Violent Crimes"), ("S13", "Elections"))
    granite = FORMATS["granite-guardian"]
    reader = read(granite, (YES, 0.9, NO, 0.1))
    assert reader.done
    assert reader.categories(granite.questions[0]) == (("harm", ""),)


def test_wildguard_is_read_after_the_line_that_is_about_the_text() -> None:
    wild = FORMATS["wildguard"]
    lines = b"Harmful request: no\nResponse refusal: no\nHarmful response: "
    assert read(wild, lines, (YES, 0.8, NO, 0.2), after="Harmful response:").unsafe is True
    assert read(wild, lines, (NO, 0.8, YES, 0.2), after="Harmful response:").unsafe is False
    assert read(wild, b"Harmful request:", (YES, 0.8, NO, 0.2), after="Harmful request:").unsafe is True
    assert read(wild, lines[:40], after="Harmful response:").unsafe is None


def test_wildguard_has_room_for_all_three_lines_of_its_answer() -> None:
    answer = "Harmful request: yes\nResponse refusal: yes\nHarmful response: yes"
    assert len(load_tokenizer(bundled_path(), None).encode_inside(answer)) <= FORMATS["wildguard"].most
