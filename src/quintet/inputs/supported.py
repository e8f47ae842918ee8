"""A control or feature that an engine lacks is refused by the name of its field. Plain code over values.

Nothing is left out silently: a request either runs as it was asked or is a 400. All this needs no tokens, so it comes before any are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from quintet.errors import BadRequest, Unsupported, shorten
from quintet.inputs.capabilities import Capabilities, Control, Feature
from quintet.inputs.sequence import SequenceSpec


def require_supported(specs: Sequence[SequenceSpec], capabilities: Capabilities) -> None:
    """Check what the specs ask of the engine.

    Raises:
        Unsupported: a control, a feature or a kind of guide that it lacks.
        BadRequest: more alternatives per token than it gives.
    """
    checked = None
    for spec in specs:
        # Prompts and samples differ in these alone.
        asked = replace(spec, prompt="", number=0, sampling=replace(spec.sampling, seed=0)) if len(specs) > 1 else spec
        if asked != checked:
            _check(asked, capabilities)
            checked = asked


def fills_in(capabilities: Capabilities) -> bool:
    """The engine ends a middle that is filled in at the model's own tokens for it."""
    return Control.STOP_TOKEN_IDS in capabilities.supported.controls


def unsupported(param: str, capabilities: Capabilities) -> Unsupported:
    """The error for a field."""
    return Unsupported(param, f"is not supported by the engine of {capabilities.model}")


def _check(spec: SequenceSpec, capabilities: Capabilities) -> None:
    have, spelled = capabilities.supported, dict(spec.spelled)
    for control in Control:
        if control not in have.controls and control.turned_on(spec.sampling):
            raise unsupported(spelled.get(control.param, control.param), capabilities)
    if spec.images and capabilities.images is None:
        raise Unsupported("images", f"needs a model that sees images, and {capabilities.model} does not; leave it out")
    if spec.images and (spec.suffix or spec.cut is not None):
        raise Unsupported("images", f"cannot be combined with {'suffix' if spec.suffix else 'truncate_prompt_tokens'}")
    if spec.suffix and not fills_in(capabilities):
        raise unsupported("suffix", capabilities)
    for feature, param in _features(spec):
        if feature not in have.features:
            raise unsupported(spelled.get(param, param), capabilities)
    if spec.guide is not None and spec.guide.kind not in have.guides:
        raise unsupported(spec.guide.param, capabilities)
    if spec.logprobs is not None and not 0 <= spec.logprobs <= capabilities.max_logprobs:
        rule = "must be at least 0" if spec.logprobs < 0 else f"must be at most {capabilities.max_logprobs}"
        raise BadRequest(spelled.get("logprobs", "logprobs"), rule, shorten(spec.logprobs))


def _features(spec: SequenceSpec) -> Iterator[tuple[Feature, str]]:
    """Those that a sequence takes, each with the field that asks for it."""
    if spec.logprobs is not None:
        yield Feature.LOGPROBS, "logprobs"
    if spec.logprob_ids:
        yield Feature.CHOSEN_LOGPROBS, "logprob_token_ids"
    if spec.echo:
        yield Feature.ECHO, "echo"
        if spec.logprobs is not None:
            yield Feature.PROMPT_LOGPROBS, "echo"
