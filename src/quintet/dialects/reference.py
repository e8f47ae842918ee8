"""The page of ``/docs``, for people: every field of every dialect, from the tables that the code enforces, each to be tried."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

from quintet.dialects.catalog import PROVIDERS, Provider
from quintet.dialects.fields import REQUIRED, Field, HasForms, Integer, Kind, LogitBias, Number, OneOf, Positive, Prompts, Stop, shown
from quintet.dialects.lists import ListOf

_SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}
_GRAMMAR = 'root ::= " red" | " blue"'
_DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
EXAMPLES: Mapping[str, Any] = {
    "model": "",  # the script of the page puts the first in that the server lists
    "max_tokens": 24,
    "suffix": " and the grass is green.",
    "n": 2,
    "temperature": 0.7,
    "mirostat": 2,
    "reasoning_effort": "none",
    "budget_tokens": 1024,
    **dict.fromkeys(("json", "schema", "json_schema", "guided_json"), _SCHEMA),
    **dict.fromkeys(("grammar", "guided_grammar", "ebnf"), _GRAMMAR),
    **dict.fromkeys(("regex", "guided_regex"), " (red|blue)"),
    **{key: [" red", " blue"] for key in ("choice", "guided_choice")},
    "images": [_DOT],
}
"""Values that show what a field does, by its name or the last part of it; for the others ``example`` finds one that is allowed."""
_STREAM = {"stream": True}
_OBJECT = {"response_format": {"type": "json_object"}}
COMPANIONS: Mapping[str, Mapping[str, Any]] = {
    **{key: {**_STREAM, "stream_options": {"include_usage": True}} for key in ("stream_options", "stream_options.include_usage")},
    "stream_options.include_obfuscation": _STREAM,
    "stream_options.continuous_usage_stats": {**_STREAM, "stream_options": {"include_usage": True}},
    **dict.fromkeys(("response_format", "response_format.type"), _OBJECT),
    "response_format.json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": _SCHEMA}}},
    "response_format.schema": _OBJECT,
    "response_format.grammar": {"response_format": {"type": "grammar"}},
    "structured_outputs": {"structured_outputs": {"choice": [" red", " blue"]}},
    "logprob_token_ids": {"logprobs": 1},
    "top_logprobs": {"logprobs": True},
    "early_stopping": {"use_beam_search": True},
    "max_completion_tokens": {"max_tokens": None},
    **{key: {"thinking": {"type": "disabled"}} for key in ("thinking", "thinking.type", "thinking.budget_tokens")},
    "images": {"prompt": "<image> shows"},
}
"""What else a request with a field needs; where both have a value, this one counts."""


def page() -> str:
    """One HTML page; its style and its script are files of this server, and it names nothing of another."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><title>Quintet: fields of the five dialects</title>',
        '<link rel="icon" href="playground/icon.svg" type="image/svg+xml">',
        '<link rel="stylesheet" href="playground/base.css">',
        '<link rel="stylesheet" href="playground/reference.css">',
        '<script type="module" src="playground/reference.js"></script></head>',
        "<body>",
        '<header class="top"><h1>Quintet</h1><nav aria-label="Pages"><a href="./">Playground</a>'
        '<a href="docs" aria-current="page">Fields</a></nav></header><main>',
        "<p>The same model in five dialects. Choose one by path, by the header <code>X-Completions-Dialect</code>, "
        "or with <code>--dialect</code> for the paths without a prefix.</p>",
        '<nav class="dialects" aria-label="Dialects">',
        *(f'<a href="#{name}">{html.escape(provider.title)}</a>' for name, provider in PROVIDERS.items()),
        "</nav>",
        '<form id="given" class="row" hidden>'
        '<label class="grow">Prompt of what is tried <input type="text" name="prompt" value="The sky is"></label>'
        '<label>API key, if one is needed <input type="password" name="key" autocomplete="off" spellcheck="false"></label></form>',
        *(_section(provider) for provider in PROVIDERS.values()),
        "</main></body></html>",
    ]
    return "\n".join(parts)


def tried(field: Field[Any]) -> dict[str, Any]:
    """The members of a request that sets a field, beside its prompt and most tokens."""
    value = EXAMPLES.get(field.name, EXAMPLES.get(field.name.rpartition(".")[2], example(field.kind)))
    for name in reversed(field.name.split(".")):
        value = {name: value}
    return _merged(value, COMPANIONS.get(field.name, {}))


def _merged(members: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(members)
    for name, value in others.items():
        both = isinstance(value, dict) and isinstance(made.get(name), dict)
        made[name] = made[name] | value if both else value
    return made


def example(kind: Kind[object]) -> Any:
    """A value that a kind allows."""
    match kind:
        case Integer(low, high) | Number(low, high):
            return min(max(1, low or 0), high if high is not None else 1)
        case Positive():
            return 1
        case OneOf(words):
            return words[-1]
        case Prompts():
            return "The sky is"
        case LogitBias():
            return {"28": -100}
        case HasForms(forms=forms):
            return example(forms[-1])
        case Stop():
            return ["."]
        case ListOf(one, _, least):
            return [example(one)] * max(1, least)
        case _:
            return _of_type(kind.type)


def _of_type(text: str) -> Any:
    first = text.split("|")[0].strip()
    plain: Mapping[str, Any] = {"string": "text", "integer": 1, "number": 1, "boolean": True, "object": {}, "array<integer>": [28]}
    return plain.get(first, ["text"] if first.startswith("array") else None)


def _section(provider: Provider) -> str:
    paths = ", ".join(f"<code>{base}/completions</code>" for base in provider.bases)
    fields = "\n".join(_field(provider, field) for field in provider.fields)
    return f"""<section aria-labelledby="{provider.name}" data-base="{provider.bases[0]}">
<h2 id="{provider.name}">{html.escape(provider.title)}</h2>
<p class="hint">Follows <a rel="noreferrer" href="{html.escape(provider.page)}">{html.escape(provider.page)}</a>.
<a href="openapi.json?dialect={provider.name}">OpenAPI document</a>.</p>
<p class="paths"><code>POST</code> {paths}</p>
<div class="fields">
{fields}
</div></section>"""


def _field(provider: Provider, field: Field[Any]) -> str:
    default = shown(field)
    facts = [f"`{field.kind.type}`", field.kind.range, default if default == REQUIRED else f"default {default}"]
    members = html.escape(json.dumps(tried(field)))
    return f"""<article id="{provider.name}.{field.name}">
<h3><code>{html.escape(field.name).replace(".", ".<wbr>")}</code></h3>
<p class="facts">{"; ".join(_marked(fact) for fact in facts if fact)}</p>
<p class="status">{html.escape(field.status.value)}</p>
<p class="note">{_marked(field.note)}</p>
<details data-members="{members}"><summary>Try it</summary></details>
</article>"""


def _marked(text: str) -> str:
    """Backquotes become code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
