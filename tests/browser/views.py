"""The other views and panels: surprise, comparison, the gap, the output's form, controls."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route

from conftest import URL, Opener, Playground, ask, until

DIALECTS = ("openai", "fireworks", "together", "cerebras", "novita")
VALID = "document.querySelector('#form-state').textContent.startsWith('Valid,')"
FIGURES = "[...document.querySelectorAll('.scored .line')].map(one => one.dataset.figure).join(' ')"
TEXT = 'The capital of France is Paris.\nThe capital of France is bananas.\n\n<b>Größe</b> 😀 und "so" weiter\nEnd.'


def test_the_surprise_map_has_the_perplexities_of_the_servers_own_numbers(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", TEXT)
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    body = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 0}
    lists = ask("/v1/completions", body)["choices"][0]["logprobs"]
    scores = np.array([np.nan if value is None else value for value in lists["token_logprobs"]])
    assert all(text.split("\n")[0] for text in page.locator("[aria-label='Worst lines'] li").all_inner_texts())
    assert float(page.inner_text("#perplexity")) == pytest.approx(np.exp(-np.nanmean(scores)), abs=5e-4)
    starts = np.array([TEXT.count("\n", 0, offset) for offset in lists["text_offset"]])
    expected = []
    for line in range(TEXT.count("\n") + 1):
        mine = scores[(starts == line) & ~np.isnan(scores)]
        expected.append("\u2013" if mine.size == 0 else f"{np.exp(-mine.mean()):.1f}")
    until(page, "document.querySelector('.scored .line').dataset.figure")
    shown = page.eval_on_selector_all(".scored .line", "all => all.map(one => one.dataset.figure)")
    assert shown == expected
    drawn = page.eval_on_selector_all(".scored .line", "all => all.map(one => one.textContent).join('\\n')")
    assert drawn == TEXT
    assert page.locator(".scored b").count() == 0
    worst = page.inner_text("[aria-label='Worst tokens'] li >> nth=0")
    assert f"{-np.nanmin(scores) / np.log(2):.1f} bits" in worst
    assert len(page.locator("[aria-label='Worst tokens'] li").all()) == 12


def test_a_scored_text_goes_on_from_any_token(playground: Opener) -> None:
    one = playground()
    page = one.open()
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", "The capital of France is Paris.")
    page.click("button.main")
    page.click("[aria-label='Worst tokens'] li button >> nth=0")
    page.wait_for_selector(".alternatives ol")
    page.click(".alternatives li button >> nth=0")
    page.wait_for_selector("#text .token")
    assert one.text().startswith("The")
    assert len(one.text()) < len("The capital of France is Paris.")


def scored(playground: Opener, text: str) -> Playground:
    one = playground()
    page = one.open()
    one.set(seed=5, max_tokens=4)
    page.click("nav >> text=Surprise")
    page.fill(".surprise textarea", text)
    page.click("button.main")
    page.wait_for_selector("#perplexity")
    return one


@pytest.mark.parametrize("text", ["The capital of France", "\U0001f600 is a face", "\u20b0\u20b1"])
def test_a_scored_text_goes_on_in_write_from_the_very_tokens_that_were_scored(playground: Opener, text: str) -> None:
    """As a text of its own: nothing is put before it that was not there when it was scored."""
    one = scored(playground, text)
    page = one.page
    page.click("text=Open in Write")
    sent = bodies(page, "/completions")
    page.click("#text")
    page.keyboard.press("Control+End")
    made = one.complete()
    assert sent[-1]["prompt"] == ask("/v1/tokenize", {"prompt": text})["tokens"]
    assert made == ask("/v1/completions", {"prompt": text, "max_tokens": 4, "seed": 5})["choices"][0]["text"]


def test_what_one_model_scored_is_never_told_to_be_anothers(playground: Opener) -> None:
    """Its ids mean other texts there."""
    one = scored(playground, "The capital of France")
    page = one.page
    page.select_option(".choices select >> nth=0", "gap")
    sent = bodies(page, "/completions")
    page.click("[aria-label='Worst tokens'] li button >> nth=0")
    page.wait_for_selector(".alternatives ol")
    assert sent[-1]["model"] == "smollm2"
    page.keyboard.press("Escape")
    page.click("text=Open in Write")
    page.click("#text")
    page.keyboard.press("Control+End")
    one.complete()
    assert (sent[-1]["model"], sent[-1]["prompt"]) == ("gap", "The capital of France")


def test_a_score_is_there_when_the_view_is_left_and_come_back_to(playground: Opener) -> None:
    one = scored(playground, "The capital of France\nis Paris.")
    page = one.page
    until(page, FIGURES)
    shown, figures = page.text_content(".map"), page.evaluate(FIGURES)
    page.click("nav >> text=Write")
    page.click("nav >> text=Surprise")
    until(page, FIGURES)
    assert (page.text_content(".map"), page.evaluate(FIGURES)) == (shown, figures)
    assert page.input_value(".surprise textarea") == "The capital of France\nis Paris."
    page.click("nav >> text=Write")
    page.click("nav >> text=Surprise")
    page.click("[aria-label='Worst tokens'] li button >> nth=0")
    page.wait_for_selector(".alternatives ol")


def test_while_something_runs_no_scored_text_is_opened_that_its_end_would_take_away(playground: Opener) -> None:
    one = scored(playground, "The capital of France")
    page = one.page
    page.route("**/completions", lambda route: None)  # no answer
    page.click("button.main")
    page.wait_for_selector("body[data-busy]")
    assert page.is_disabled("text=Open in Write")
    page.click("button.main")
    one.done()
    assert page.is_enabled("text=Open in Write")


def bodies(page: Page, path: str) -> list[dict[str, Any]]:
    """What the page sends to a path from now on."""
    found: list[dict[str, Any]] = []
    page.on("request", lambda request: found.append(json.loads(request.post_data or "")) if path in request.url else None)
    return found


def test_where_there_are_no_alternatives_that_is_told_and_escape_closes_it(playground: Opener) -> None:
    one = scored(playground, "The capital of France")
    page = one.page
    page.click("[aria-label='Worst lines'] li button")  # a line that begins with the first token
    page.wait_for_selector(".alternatives .problem")
    page.keyboard.press("Escape")
    page.wait_for_selector(".alternatives", state="detached")


def test_two_settings_side_by_side_and_where_they_part(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=5, max_tokens=16)
    page.click("nav >> text=Compare")
    page.fill(".compare textarea >> nth=0", "The recipe begins with")
    page.click("button.main")
    page.wait_for_selector("#parting")
    assert page.inner_text("#parting") == "The same to the end."
    page.select_option("section[aria-label=B] label:has-text('Another control') select", "temperature")
    page.fill("#B-temperature", "0")
    page.keyboard.press("Tab")
    page.click("button.main")
    one.done()
    page.wait_for_selector("#parting")
    texts = []
    for at, temperature in enumerate((1, 0)):
        body = {"prompt": "The recipe begins with", "max_tokens": 16, "seed": 5, "temperature": temperature, "logprobs": 0}
        answer = ask("/v1/completions", body)["choices"][0]
        assert page.locator(".side .tokens").nth(at).text_content() == answer["text"]
        texts.append(answer["logprobs"]["tokens"])
    same = next((k for k, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 16)
    assert same < 16
    told = {0: "Another token from the first on.", 1: "The same for the first token."}.get(same, f"The same for the first {same} tokens.")
    assert page.inner_text("#parting").startswith(told)
    common = longest(*texts)
    assert f"{common} in common, {16 - common} only in A, {16 - common} only in B" in page.inner_text("#parting")
    assert page.locator("section[aria-label=A] .only").count() == 16 - common


def test_two_texts_are_compared_once_however_much_is_typed_beside_them(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=5, max_tokens=8, temperature=0)
    page.click("nav >> text=Compare")
    page.fill(".compare textarea >> nth=0", "The recipe begins with")
    page.select_option("section[aria-label=B] label:has-text('Another control') select", "temperature")
    page.fill("#B-temperature", "2")
    page.keyboard.press("Tab")
    page.evaluate("""() => {
        window.rows = 0;  // of the table that finds what both have in common
        window.Uint32Array = class extends Uint32Array { constructor(...all) { super(...all); window.rows++; } };
    }""")
    page.click("button.main")
    page.wait_for_selector("#parting")
    told, rows = page.inner_text("#parting"), page.evaluate("window.rows")
    assert rows > 1
    page.click(".compare textarea >> nth=0")
    page.keyboard.type(" and")
    assert (page.inner_text("#parting"), page.evaluate("window.rows")) == (told, rows)


def longest(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if left == right else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


def test_two_models_side_by_side(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=5, max_tokens=8)
    page.click("nav >> text=Compare")
    page.fill(".compare textarea >> nth=0", "The recipe begins with")
    page.select_option("section[aria-label=B] select >> nth=0", "gap")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or "") if "completions" in request.url else None)
    page.click("button.main")
    page.wait_for_selector("#parting")
    assert [json.loads(body)["model"] for body in sent] == ["smollm2", "gap"]
    assert page.inner_text("#parting") == "The same to the end."  # they are the same weights


def test_a_gap_is_filled_and_kept(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(seed=5, max_tokens=6)
    page.click("nav >> text=Fill")
    page.fill("textarea >> nth=0", "def add(a, b):\n")
    page.fill("textarea >> nth=1", "\n    return c\n")
    page.click("button.main")
    page.wait_for_selector(".problem")
    assert "'suffix' needs a model with fill-in-the-middle tokens" in one.problem()
    page.select_option(".choices select >> nth=0", "gap")
    page.click("button.main")
    page.wait_for_selector(".gap .token")
    one.done()
    body = {"model": "gap", "prompt": "def add(a, b):\n", "suffix": "\n    return c\n", "max_tokens": 6, "seed": 5}
    expected = ask("/openai/v1/completions", body)["choices"][0]["text"]
    assert page.locator(".gap .tokens").text_content() == expected
    page.click("nav >> text=Write")
    page.click("nav >> text=Fill")
    assert page.locator(".gap .tokens").text_content() == expected
    page.click("text=Keep")
    assert page.input_value("textarea >> nth=0") == "def add(a, b):\n" + expected


def test_the_outputs_form_is_checked_while_it_is_written_and_heeded(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(temperature=0, max_tokens=40)
    page.click("#tab-form")
    page.select_option("#form-kind", "json")
    until(page, VALID)
    page.fill("#form-text", '{"type": "objekt"}')
    page.wait_for_selector("#form-state.wrong")
    assert "Invalid type: objekt" in page.inner_text("#form-state")
    page.fill("#form-text", '{"enum": [\n"ye')
    until(page, "document.querySelector('#form-state').textContent.includes('Unterminated string')")
    assert page.get_attribute("#form-text", "aria-invalid") == "true"
    page.fill(
        "#form-text", '{"type": "object", "properties": {"age": {"enum": [1, 23]}}, "required": ["age"], "additionalProperties": false}'
    )
    until(page, VALID)
    one.write("A person as JSON:")
    assert json.loads(one.complete())["age"] in (1, 23)
    assert "whole, valid JSON" in page.inner_text(".form")
    for kind, text, form in (("grammar", 'root ::= "ja" | "nein"', {"ja", "nein"}), ("regex", "(left|right)", {"left", "right"})):
        page.select_option("#form-kind", kind)
        page.fill("#form-text", "(")
        page.wait_for_selector("#form-state.wrong")
        page.fill("#form-text", text)
        until(page, VALID)
        one.write("\n")
        assert one.complete() in form
    page.select_option("#form-kind", "any")
    page.wait_for_timeout(600)
    page.click("#tab-controls")
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens", "temperature"]


def test_a_form_that_was_left_before_it_was_checked_is_checked_all_the_same(playground: Opener) -> None:
    """Else what had been valid before would be heeded on, and nothing would say so."""
    one = playground()
    page = one.open()
    page.click("#tab-form")
    page.select_option("#form-kind", "json")
    until(page, VALID)
    for text, heeded in (('{"enum": [7]}', True), ('{"enum": [', False)):
        page.fill("#form-text", text)
        page.click("#tab-controls")
        box = "[id='control-response_format.json_schema']"
        wanted = '{"enum":[7]}' if heeded else ""
        until(page, f"""document.querySelector("{box}").value === '{wanted}'""")
        page.click("#tab-form")
    page.fill("#form-text", '{"enum": [7]}')
    page.select_option("#form-kind", "any")  # whatever had been written in another form
    page.click("#tab-controls")
    page.wait_for_timeout(600)
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_field_of_a_dialect_is_there_and_what_is_set_is_sent(playground: Opener, dialect: str) -> None:
    with urllib.request.urlopen(f"{URL}/openapi.json?dialect={dialect}", timeout=60) as answer:
        document = json.load(answer)
    properties = document["paths"]["/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    names = set()
    for name, one_of in properties.items():
        names |= {f"{name}.{inner}" for inner in one_of["properties"]} if "properties" in one_of else {name}
    one = playground()
    page = one.open()
    one.speak(dialect)
    shown = page.locator(".control label, .own dt").all_inner_texts()
    assert sorted(shown) == sorted(names)
    one.set(temperature=0.5, seed=9, max_tokens=6, stop='["zzz", "yyy"]', min_p=0.01, ignore_eos=True)
    sent: list[tuple[str, str]] = []
    page.on("request", lambda request: sent.append((request.url, request.post_data or "")) if "completions" in request.url else None)
    one.write("The sky is")
    made = one.complete()
    (url, data), *_ = sent
    body = json.loads(data)
    assert url == URL + document["servers"][0]["url"] + "/completions"
    wanted = {"temperature": 0.5, "seed": 9, "max_tokens": 6, "stop": ["zzz", "yyy"], "min_p": 0.01, "ignore_eos": True}
    assert {name: body[name] for name in wanted} == wanted
    expected = ask(document["servers"][0]["url"] + "/completions", {"prompt": "The sky is", **wanted}, dialect)
    assert made == expected["choices"][0]["text"]
    assert page.locator("#text .token").count() >= 5
    page.keyboard.press("Control+Enter")
    one.done()
    if dialect != "together":  # its page has prompts of text alone
        assert isinstance(json.loads(sent[-1][1])["prompt"], list)


def test_looking_at_the_outputs_form_changes_no_control(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(**{"response_format.type": "json_object"})
    page.click("#tab-form")
    page.wait_for_timeout(600)
    page.click("#tab-controls")
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens", "response_format.type"]
    page.click("#tab-form")
    page.select_option("#form-kind", "regex")  # but a form that is chosen takes its place
    until(page, VALID)
    page.click("#tab-controls")
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens", "structured_outputs.regex"]


def test_what_a_control_cannot_be_stays_there_to_be_mended(playground: Opener) -> None:
    one = playground()
    page = one.open()
    one.set(logit_bias='{"1": 2', temperature=0.5)
    bias = page.locator("#control-logit_bias")
    assert (bias.input_value(), bias.get_attribute("aria-invalid")) == ('{"1": 2', "true")
    one.set(logit_bias='{"1": 2}')
    assert (bias.input_value(), bias.get_attribute("aria-invalid")) == ('{"1":2}', "false")
    one.set(logit_bias="{")
    assert page.locator(".control.set label").all_inner_texts() == ["max_tokens", "temperature"], "it is sent no more"
    page.click("text=Reset all")
    assert (bias.input_value(), bias.get_attribute("aria-invalid")) == ("", "false")


def test_the_dialect_that_was_chosen_last_is_spoken(playground: Opener) -> None:
    """However long the fields of one that was passed over take to come."""
    one = playground()
    page = one.open()
    late: list[Route] = []
    page.route("**/openapi.json?dialect=fireworks", lambda route: late.append(route))
    page.click("#tab-code")
    for dialect in ("fireworks", "novita"):
        page.select_option(".choices select >> nth=1", dialect)
    until(page, "document.querySelector('pre')?.textContent.includes('/novita/')")
    late[0].continue_()
    page.wait_for_timeout(1000)
    assert page.input_value(".choices select >> nth=1") == "novita"
    assert "/novita/" in page.inner_text("pre")


def test_a_wrong_value_is_told_in_the_servers_words(playground: Opener) -> None:
    one = playground()
    one.open()
    one.set(temperature=7, max_tokens="4")
    one.write("a")
    one.page.keyboard.press("Control+Enter")
    one.page.wait_for_selector(".problem")
    assert "temperature" in one.problem()
    assert "between 0 and 2, got 7" in one.problem()
    assert one.text() == "a"
    assert one.page.inner_text(".told") == ""  # nothing was written, so there is nothing to tell of it
    one.page.click("#tab-tree")
    assert one.page.locator("[role=treeitem]").count() == 1  # nothing has happened
