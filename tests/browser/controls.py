"""What is written into a control: what is sent of it, and what is told and stays where it is none of the control's values."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route
from views import DIALECTS, VALID, bodies

from conftest import Opener, Playground, until


def go_on(one: Playground, text: str) -> None:
    """Write, and ask for a completion, whatever comes of it."""
    one.write(text)
    one.page.keyboard.press("Control+Enter")
    one.done()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_may_be_a_string_as_well_need_not_be_quoted(playground: Opener, dialect: str) -> None:
    one = playground()
    page = one.open()
    one.speak(dialect)
    words = {"stop": "END", "prediction": "The sky is blue", "early_stopping": "never"}
    words |= {"speculation": "blue", "reasoning_effort": "low"} if dialect == "fireworks" else {}
    one.set(**words, max_tokens=2)
    assert page.locator(".controls .wrong").count() == 0
    sent = bodies(page, "/completions")
    go_on(one, "The sky is")
    assert {name: sent[-1].get(name) for name in words} == words
    one.set(stop='["END", "."]', early_stopping="true", prediction='"quoted"')
    go_on(one, " so")
    assert (sent[-1]["stop"], sent[-1]["early_stopping"], sent[-1]["prediction"]) == (["END", "."], True, "quoted")


@pytest.mark.parametrize("text", ['["a"', '["a", ]', " [a, b]", '"END', '{"a": 1'])
def test_what_begins_like_json_and_is_none_is_told_and_not_sent_as_a_string(playground: Opener, text: str) -> None:
    one = playground()
    page = one.open()
    one.set(stop="END", max_tokens=2)
    one.set(stop=text)
    assert page.inner_text("#control-stop-note") == "This must be JSON; a text that begins like it must be quoted, as JSON has it."
    assert (page.input_value("#control-stop"), page.get_attribute("#control-stop", "aria-invalid")) == (text, "true")
    sent = bodies(page, "/completions")
    go_on(one, "The sky is")
    assert "stop" not in sent[-1]
    one.set(stop='"[INST]"')
    assert page.get_attribute("#control-stop", "aria-invalid") == "false"
    go_on(one, " so")
    assert sent[-1]["stop"] == "[INST]"


@pytest.mark.parametrize("text", ["", "[0-9]"])
def test_a_forms_control_that_is_set_by_hand_stays_so_when_the_output_is_looked_at(playground: Opener, text: str) -> None:
    one = playground()
    page = one.open()
    page.click("#tab-form")
    page.select_option("#form-kind", "regex")
    until(page, VALID)
    page.fill("#form-text", "(left|right)")
    until(page, VALID)
    one.set(**{"structured_outputs.regex": text})
    page.click("#tab-form")
    page.wait_for_timeout(600)
    assert page.input_value("#form-kind") == "any"
    page.click("#tab-controls")
    assert page.input_value("[id='control-structured_outputs.regex']") == text
    page.click("#tab-form")
    page.select_option("#form-kind", "regex")
    assert page.input_value("#form-text") == "(left|right)", "what was written is there"
    until(page, VALID)
    page.click("#tab-controls")
    assert page.input_value("[id='control-structured_outputs.regex']") == "(left|right)"


def test_a_reset_gives_up_the_outputs_form_as_well(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.click("#tab-form")
    page.select_option("#form-kind", "regex")
    until(page, VALID)
    page.click("#tab-controls")
    page.click("text=Reset all")
    page.click("#tab-form")
    assert page.input_value("#form-kind") == "any"
    page.wait_for_timeout(600)
    page.click("#tab-controls")
    assert page.locator(".control.set").count() == 0
    page.click("#tab-form")
    page.select_option("#form-kind", "regex")
    until(page, VALID)
    page.fill("#form-text", "(left|right)")
    late: list[Route] = []
    page.route("**/completions", lambda route: late.append(route))
    with page.expect_request("**/completions"):
        page.click("#tab-controls")  # it is checked from here on, and what comes of that comes after the reset
    page.click("text=Reset all")
    with page.expect_response("**/completions"):
        late[-1].continue_()
    page.wait_for_timeout(300)
    assert page.locator(".control.set").count() == 0


def test_a_mistyped_control_of_a_comparison_stays_to_be_mended(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(max_tokens=2)
    page.click("nav >> text=Compare")
    more = "section[aria-label=A] label:has-text('Another control') select"
    for name, text in (("logit_bias", '{"1": 2}'), ("stop", '["a"]'), ("seed", "5")):
        page.select_option(more, name)
        page.fill(f"#A-{name}", text)
        page.keyboard.press("Tab")
    bias = page.locator("#A-logit_bias")
    bias.fill('{"1": 2')
    page.keyboard.press("Tab")
    page.select_option(more, "temperature")
    assert (bias.input_value(), bias.get_attribute("aria-invalid")) == ('{"1": 2', "true")
    assert page.inner_text("#A-logit_bias-note") == "This must be JSON."
    sent = bodies(page, "/completions")
    page.click("button.main")
    one.done()
    assert "logit_bias" not in sent[0]
    assert bias.get_attribute("aria-invalid") == "true"
    bias.fill('{"1": 3}')
    page.keyboard.press("Tab")
    assert bias.get_attribute("aria-invalid") == "false"
    bias.fill("")
    page.keyboard.press("Tab")
    assert bias.count() == 0, "as for one that was given up"


@pytest.mark.parametrize("text", ["1e", "-", "1e999"])
def test_what_is_no_number_is_told_and_stays_to_be_mended(playground: Opener, text: str) -> None:
    one = playground()
    page = one.open()
    one.set(temperature=0.5, max_tokens=2)
    for name in ("temperature", "seed"):  # over a number, and where there was none
        page.focus(f"#control-{name}")
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
        page.keyboard.press("Tab")
        assert page.inner_text(f"#control-{name}-note") == "This must be a number."
        assert page.get_attribute(f"#control-{name}", "aria-invalid") == "true"
        assert page.evaluate(f"document.getElementById('control-{name}').validity.badInput"), "it is shown as it was written"
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens"], "it is sent no more"
    page.focus("#control-seed")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Tab")
    assert page.get_attribute("#control-seed", "aria-invalid") == "false"
    one.set(temperature=0.25)
    assert page.get_attribute("#control-temperature", "aria-invalid") == "false"
    sent = bodies(page, "/completions")
    go_on(one, "The sky is")
    assert sent[0]["temperature"] == 0.25
