"""What a client makes of a stream by putting its chunks together. Written from the providers' pages, without a look at the renderers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def folded(dialect: str, chunks: list[dict[str, Any]], logprobs: int | None) -> dict[str, Any]:
    """The JSON body that a stream of this dialect amounts to.

    Args:
        logprobs: as the request asked.
    """
    if dialect == "fireworks":
        return joined_fireworks(chunks)
    if dialect == "together":
        about = {name: chunks[0][name] for name in ("id", "created", "model")}
        return {**about, "object": "text.completion", **joined_together(chunks, logprobs)}
    whole = put_together(chunks)
    if dialect == "cerebras":  # a key without a value is not there
        whole["choices"] = [{name: value for name, value in choice.items() if value is not None} for choice in whole["choices"]]
    if dialect == "openai":  # of a stream's chunks only
        whole.pop("obfuscation", None)
    return whole


def put_together(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Texts, ids and lists joined; of all else the last that is there."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk.pop("choices"):
            seen = choices.setdefault(piece["index"], {})
            assert not seen.get("finish_reason"), "nothing follows a finish reason"
            lists = piece.pop("logprobs", None)
            for name in ("text", "tokens"):
                if name in piece:
                    seen[name] = seen[name] + piece[name] if name in seen else piece[name]
            if lists is None:
                seen.setdefault("logprobs", None)
            else:
                seen["logprobs"] = {name: (seen.get("logprobs") or {}).get(name, []) + values for name, values in lists.items()}
            seen |= {name: value for name, value in piece.items() if name in ("index", "finish_reason")}
        whole |= chunk
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def joined_fireworks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A client's view of a Fireworks stream."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for at, chunk in enumerate(chunks):
        assert (chunk["usage"] is not None) == (at == len(chunks) - 1)
        pieces = chunk.pop("choices")
        assert len(pieces) == 1
        whole |= chunk
        piece = pieces[0]
        seen = choices.setdefault(piece["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert seen["finish_reason"] is None
        seen["text"] += piece.pop("text")
        lists = piece.pop("logprobs")
        if lists is not None:
            seen["logprobs"] = {name: (seen["logprobs"] or {}).get(name, []) + values for name, values in lists.items()}
        if "token_ids" in piece:
            seen["token_ids"] = seen.get("token_ids", []) + piece.pop("token_ids")
        assert "prompt_token_ids" not in piece or "prompt_token_ids" not in seen
        seen |= piece
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def joined_together(chunks: list[dict[str, Any]], logprobs: int | None) -> dict[str, Any]:
    """A client's view of a Together stream."""
    whole: dict[str, Any] = {"prompt": []}
    choices: dict[int, dict[str, Any]] = {}
    for at, chunk in enumerate(chunks):
        assert (chunk["usage"] is not None) == (at == len(chunks) - 1)
        assert "prompt" not in chunk or at == 0
        whole["prompt"] = chunk.get("prompt") or whole["prompt"]
        whole["usage"] = chunk["usage"]
        (piece,) = chunk["choices"]
        assert piece["text"] == piece["delta"]["content"] == chunk["token"]["text"]
        made = choices.setdefault(piece["index"], {"text": "", "index": piece["index"], "tops": [], "ids": [], "texts": [], "values": []})
        made["text"] += piece["text"]
        if "token_id" in piece["delta"]:
            made["ids"].append(chunk["token"]["id"])
            made["texts"].append(chunk["token"]["text"])
            made["values"].append(chunk["token"]["logprob"])
            assert piece.get("logprobs") == (None if logprobs is None else chunk["token"]["logprob"])
        if "top_logprobs" in piece:
            made["tops"].append(piece["top_logprobs"])
        assert chunk["finish_reason"] == piece["finish_reason"]
        if piece["finish_reason"]:
            made |= {"finish_reason": piece["finish_reason"], "seed": piece["seed"]}
            assert chunk["seed"] == piece["seed"]
    whole["choices"] = [_choice(choices[index], logprobs) for index in sorted(choices)]
    return whole


def _choice(made: dict[str, Any], logprobs: int | None) -> dict[str, Any]:
    lists = {"token_ids": made.pop("ids"), "tokens": made.pop("texts"), "token_logprobs": made.pop("values")}
    tops = made.pop("tops")
    if logprobs:
        merged: dict[str, float] = {}
        for text, value in (pair for step in tops for pair in step.items()):
            merged[text] = max(value, merged.get(text, value))
        lists |= {"token_top_logprobs": tops, "top_logprobs": merged}
    return made if logprobs is None else {**made, "logprobs": lists}
