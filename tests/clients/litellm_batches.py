"""litellm's own calls for files and batches, in OpenAI's flow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import litellm

from support import TOY

OURS = {"custom_llm_provider": "openai", "api_base": f"{TOY}/v1", "api_key": "local"}
PATIENCE_S = 120


def test_a_batch_from_its_file_to_its_output(tmp_path: Path) -> None:
    bodies = [{"model": "toy", "prompt": f"line {number}", "max_tokens": 4, "seed": number} for number in range(3)]
    lines = [{"custom_id": str(at), "method": "POST", "url": "/v1/completions", "body": body} for at, body in enumerate(bodies)]
    written = tmp_path / "in.jsonl"
    written.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    with written.open("rb") as opened:
        file = litellm.create_file(file=opened, purpose="batch", **OURS)
    batch = litellm.create_batch(completion_window="24h", endpoint="/v1/completions", input_file_id=file.id, **OURS)
    end = time.monotonic() + PATIENCE_S
    while (now := litellm.retrieve_batch(batch_id=batch.id, **OURS)).status != "completed":
        assert now.status in ("validating", "in_progress", "finalizing") and time.monotonic() < end
        time.sleep(0.1)
    assert now.request_counts.completed == 3
    output = litellm.file_content(file_id=now.output_file_id, **OURS).content
    answers = [json.loads(line) for line in output.decode().splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["0", "1", "2"]
    for answer, body in zip(answers, bodies, strict=True):
        alone = litellm.text_completion(**{**body, "model": "text-completion-openai/toy"}, api_base=OURS["api_base"], api_key="local")
        assert answer["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    assert batch.id in {one.id for one in litellm.list_batches(limit=100, **OURS).data}
    assert litellm.file_delete(file_id=file.id, **OURS).deleted
