"""Our class for vLLM's second model runner, through vLLM's own loader and interface, on real tensors; and its first's in the same steps.

The runner itself does not run here: it is made of Triton kernels, and the Triton on PyPI computes on no CPU. What it does with a processor
is played: a step's rows in any order, prompts in pieces, slots that are used again, sequences that are preempted. The oracle is the core's
own sampler, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.backends.vllm.test_choose import CONTROLS, PROMPT, VOCAB, Refusals, alone, asked, chooser, logits
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, build_custom_logits_processors

from quintet.backends.vllm import v1, v2
from quintet.backends.vllm.wire import EXTRA, Choose, encode_choose

SLOTS, LENGTH, STEPS = 8, 64, 8
NAME = "quintet.backends.vllm.v2:Choose"


@dataclass
class Playing:
    """One of the controls on its way; its logits of a step are row ``number`` of ``logits``."""

    number: int
    slot: int
    generated: list[int] = field(default_factory=list)

    @property
    def params(self) -> SamplingParams:
        choose = Choose(self.number + 1, len(PROMPT), asked(CONTROLS[self.number]))
        return SamplingParams(temperature=0.0, extra_args={EXTRA: encode_choose(choose)})


class Played:
    """The runner's side."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(v2, "connect", lambda path, vocab: chooser(Refusals()))
        self.tokens = torch.zeros((SLOTS, LENGTH), dtype=torch.int32)
        self.tokens[:, : len(PROMPT)] = torch.tensor(PROMPT)
        config: Any = SimpleNamespace(additional_config={EXTRA: "/nowhere"})
        states: Any = SimpleNamespace(
            device=torch.device("cpu"),
            max_num_reqs=SLOTS,
            vocab_size=VOCAB,
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            prompt_len=None,
            prefill_len=None,
            total_len=None,
        )
        (self.made,) = build_custom_logits_processors(config, states, False, [NAME])
        assert isinstance(self.made, v2.Choose)

    def enter(self, *sequences: Playing) -> None:
        for one in sequences:
            self.tokens[one.slot, len(PROMPT) : len(PROMPT) + len(one.generated)] = torch.tensor(one.generated, dtype=torch.int32)
            assert self.made.add_request(one.slot, one.params)
        self.made.apply_staged_writes()

    def step(self, sequences: Sequence[Playing], behind: int = 0) -> None:
        """A token of each, in the order given.

        Args:
            behind: tokens of the prompt that are not computed yet: then nobody looks at what is drawn.
        """
        given = torch.tensor(np.stack([logits(len(one.generated), one.number + 1)[one.number] for one in sequences]))
        before = given.clone()
        slots = torch.tensor([one.slot for one in sequences], dtype=torch.int32)
        positions = torch.tensor([len(PROMPT) + len(one.generated) - 1 - behind for one in sequences])
        context = LogitsContext(
            slots, slots, slots.numpy(), torch.zeros_like(slots), torch.zeros_like(slots), positions, positions.numpy() + 1
        )
        found = self.made.apply(given, context)
        if behind:
            assert torch.equal(found, before)
            return
        for one, row, own in zip(sequences, found, before, strict=True):
            token = int(row.argmax())
            changed = (row != own).nonzero().flatten().tolist()
            assert changed == [token], "the chosen token's logit alone, so that log-probabilities of a copy are the model's"
            self.tokens[one.slot, len(PROMPT) + len(one.generated)] = token
            one.generated.append(token)


def test_rows_in_any_order_and_prompts_in_pieces_draw_what_each_draws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    sequences = [Playing(number, (number * 3) % SLOTS) for number in range(len(CONTROLS))]
    played.enter(*sequences)
    played.step(sequences, behind=5)
    for step in range(STEPS):
        turned = sequences[step % len(sequences) :] + sequences[: step % len(sequences)]
        played.step(turned[: 1 + step % len(sequences)])
    for one in sequences:
        assert one.generated == alone(CONTROLS[one.number], one.number, len(one.generated))
    assert max(len(one.generated) for one in sequences) >= 4


def test_a_slot_is_used_again_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    for number in range(len(CONTROLS)):
        one = Playing(number, 3)
        played.enter(one)
        for _ in range(STEPS):
            played.step([one])
        assert one.generated == alone(CONTROLS[number], number, STEPS)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_who_was_preempted_goes_on_in_whichever_slot(monkeypatch: pytest.MonkeyPatch, elsewhere: bool) -> None:
    """Also Mirostat, whose bound is no function of the tokens."""
    played = Played(monkeypatch)
    sequences = [Playing(number, number) for number in range(len(CONTROLS))]
    played.enter(*sequences)
    for _ in range(3):
        played.step(sequences)
    if elsewhere:
        for one in sequences:
            one.slot = SLOTS - 1 - one.slot
    played.enter(*sequences)
    for _ in range(3):
        played.step(sequences)
    assert [one.generated for one in sequences] == [alone(CONTROLS[one.number], one.number, 6) for one in sequences]


def test_one_that_is_not_known_any_more_goes_on_from_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        played = Played(monkeypatch)
        one = Playing(number, 2, alone(CONTROLS[number], number, 4))
        played.enter(one)
        played.step([one])
        assert one.generated == alone(CONTROLS[number], number, 5)


def test_requests_that_are_not_ours_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch)
    assert not played.made.add_request(0, SamplingParams(temperature=0.0))
    given = torch.randn((1, VOCAB))
    slots = torch.tensor([0])
    context = LogitsContext(slots, slots, slots.numpy(), slots, slots, torch.tensor([40]), np.array([41]))
    assert torch.equal(played.made.apply(given.clone(), context), given)


def test_both_runners_classes_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "connect", lambda path, vocab: chooser(Refusals()))
    config = SimpleNamespace(additional_config={EXTRA: "/nowhere"}, model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB))
    first = v1.Choose(config, torch.device("cpu"), False)
    one = Playing(3, 0)
    generated: list[int] = []
    first.update_state(BatchUpdate(batch_size=1, removed=[], added=[(0, one.params, list(PROMPT), generated)], moved=[]))
    for step in range(STEPS):
        row = first.apply(torch.tensor(logits(step, 4)[3:4]))
        generated.append(int(row.argmax()))
    played = Played(monkeypatch)
    played.enter(one)
    for _ in range(STEPS):
        played.step([one])
    assert one.generated == generated == alone(CONTROLS[3], 3, STEPS)
