"""Try an installed Quintet as a user has it: fetch the bundled model, serve it, ask, run it without a server. Standard library only.

Usage: smoke.py [COMMAND ...], the words that run ``quintet`` (default: ``quintet``). The model goes into ``$QUINTET_CACHE``.
The last line of stdout is the answer with its log-probabilities, which is the same to the bit wherever it is asked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request

ASKED = {"model": "smollm2", "prompt": "The sky is", "max_tokens": 24, "temperature": 0.7, "seed": 5, "logprobs": 3}
PATIENCE_S = 600
"""For the fetch, and for an emulated machine."""


def served(command: list[str]) -> str:
    """What a server answers to ``ASKED``, in JSON; it is started and ended here."""
    server = subprocess.Popen([*command, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
        if not found:
            raise SystemExit("error: quintet serve ended, or did not say where it listens")
        ask = urllib.request.Request(f"{found[0]}/v1/completions", json.dumps(ASKED).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(ask, timeout=PATIENCE_S) as reply:
            choice = json.load(reply)["choices"][0]
    finally:
        server.terminate()
        code = server.wait(PATIENCE_S)
    if code != 0:
        raise SystemExit(f"error: quintet serve ended with {code}")
    return json.dumps({"text": choice["text"], "logprobs": choice["logprobs"]["token_logprobs"]})


def main(command: list[str]) -> None:
    for words in (["--version"], ["pull"], ["list"]):
        subprocess.run([*command, *words], check=True, timeout=PATIENCE_S)
    words = ["run", "smollm2", str(ASKED["prompt"]), "--max-tokens", "24", "--temperature", "0.7", "--seed", "5"]
    said = subprocess.run([*command, *words], check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True).stdout
    answer = served(command)
    if json.loads(answer)["text"] not in said:
        raise SystemExit(f"error: quintet run says {said!r}, and quintet serve {answer}")
    print(answer)


if __name__ == "__main__":
    main(sys.argv[1:] or ["quintet"])
