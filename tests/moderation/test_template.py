"""A moderation format as its owner writes it: what is taken, and what is refused in a line that names the key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.errors import ModelError
from quintet.moderation.format import Layout, Part, Question
from quintet.moderation.template import MAX_BYTES, read

LEAST = b'prompt = "<q>{prompt}"\noutput = "<q>{prompt}<a>{output}"\nsafe = "OK"\nunsafe = "Bad"\n'
LINES = (
    b'after = "x"', b"after = 1", b'control = ["<q>"]', b"control = [[]]", b"threshold = 0.5", b"threshold = 1e999", b"threshold = true",
    b"max-tokens = 128", b"max-tokens = 0", b"max-tokens = 1.5", b"[categories]", b'S1 = "x"', b"S2 = {}", b"safe = 1", b'"\\n" = 1', b"#",
)  # fmt: skip


def test_what_a_file_may_say() -> None:
    more = b'after = "Answer:"\ncontrol = ["<q>", "<a>"]\nthreshold = 0.2\nmax-tokens = 8\n[categories]\nC1 = "Cats"\n'
    form = read(LEAST + more, "guard.toml")
    assert form.questions == (Question(Layout("<q>{prompt}", "Answer:"), Layout("<q>{prompt}<a>{output}", "Answer:")),)
    assert (form.name, form.safe, form.unsafe, form.threshold, form.most) == ("guard.toml", "ok", "bad", 0.2, 8)
    assert form.categories == (("C1", "Cats"),)
    assert form.parts(form.questions[0].output, "x<a>", "y") == [
        Part("<q>", control=True), Part("x<a>"), Part("<a>", control=True), Part("y"),
    ]  # fmt: skip
    assert read(LEAST, "guard.toml").threshold == 0.5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "guard.toml must be UTF-8; the byte at offset 0 is not."),
        (b"prompt = ", "guard.toml is not TOML: "),
        (b"a = " + b"[" * 5000, "guard.toml is not TOML: "),
        (b"#" * (MAX_BYTES + 1), f"guard.toml has {MAX_BYTES + 1} bytes; a moderation format has at most {MAX_BYTES}."),
        (LEAST + b"colour = 1", "guard.toml: unknown key 'colour'; the keys are prompt, output, safe, "),
        (b'prompt = "{prompt}"', "guard.toml: output is missing; it must be a text with {prompt} and {output} in it once each."),
        (LEAST.replace(b"{prompt}<a>", b""), "guard.toml: output must be a text with {prompt} and {output} in it once each, got "),
        (LEAST.replace(b'"OK"', b"1"), "guard.toml: safe must be a text of 1 to 256 characters, got 1."),
        (LEAST.replace(b'"OK"', b'" "'), "guard.toml: safe must be a text of 1 to 256 characters, got ' '."),
        (LEAST.replace(b'"OK"', b'"brave"'), "guard.toml: safe and unsafe must begin with different letters, got 'brave' and 'bad'."),
        (LEAST + b"threshold = 0", "guard.toml: threshold must be a number above 0, up to 1, got 0."),
        (LEAST + b"threshold = nan", "guard.toml: threshold must be a number above 0, up to 1, got nan."),
        (LEAST + b"max-tokens = 1000000", "guard.toml: max-tokens must be an integer from 1 to 128, got 1000000."),
        (LEAST + b"max-tokens = true", "guard.toml: max-tokens must be an integer from 1 to 128, got true."),
        (LEAST + b'control = [""]', "guard.toml: control must be a list of at most 64 texts of 1 to 256 characters, got ['']."),
        (LEAST + b'[categories]\n"S 1" = "x"', "guard.toml: categories must be a table of at most 64 codes, "),
    ],
)
def test_what_it_may_not_say_is_told_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(data, "guard.toml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200) | st.lists(st.sampled_from(LINES), max_size=3).map(b"\n".join))
def test_whatever_follows_is_a_format_that_can_be_asked_or_one_clear_error(data: bytes) -> None:
    try:
        form = read(LEAST + data, "guard.toml")
    except ModelError as error:
        assert str(error).startswith("guard.toml") and str(error).isprintable() and len(str(error)) < 500
        return
    assert 0 < form.threshold <= 1 and 1 <= form.most <= 128
    assert "".join(part.text for part in form.parts(form.questions[0].output, "one", "two")) == "<q>one<a>two"
