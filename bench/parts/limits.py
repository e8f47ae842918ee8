"""Microseconds of CPU that a key with limits costs a request in the front: who asks, what may be used, what the headers say.

    python -m bench.parts.limits [--keys 1000] [--requests 20000]

Each part alone, on one thread, without HTTP; the median of five rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from quintet.dialects.catalog import PROVIDERS
from quintet.keys.key import Key
from quintet.keys.limits import Limiter
from quintet.keys.store import KeyStore
from quintet.quota import Limits
from quintet.server.auth import Auth

LIMITS = Limits(10**9, 10**9, 10**12, 10**12, 10**6, 10**15)
ROUNDS = 5


def microseconds(work: Callable[[], object], times: int) -> float:
    """Of one ``work``."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(times):
            work()
        rounds.append((time.thread_time() - began) / times * 1e6)
    return median(rounds)


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = KeyStore(Path(folder) / "keys.db")
        secret = [store.add(Key(b"", f"key-{number}", limits=LIMITS)) for number in range(args.keys)][-1]
        auth = Auth((), "", [store], time.monotonic, time.time)
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {secret}".encode())]
        key = auth.require(headers, "127.0.0.1").key
        limiter = Limiter(0, time.monotonic, time.time, None)

        def use(one: Key) -> None:
            with limiter.open(one) as lease:
                lease.reserve(1000)
                lease.settle(10)

        meters = limiter.meters(key)
        openai = PROVIDERS["openai"].dialect
        parts: dict[str, Callable[[], object]] = {
            f"find one of {args.keys} keys": lambda: auth.require(headers, "127.0.0.1"),
            "use it: five limits, parallel": lambda: use(key),
            "use one without limits": lambda: use(Key(b"")),
            "its meters": lambda: limiter.meters(key),
            "OpenAI's headers": lambda: openai.limits(meters, False),
            "look whether the store has changed": store.stamp,
            f"read {args.keys} keys": store.read,
        }
        for name, work in parts.items():
            print(f"{name:36} {microseconds(work, 20 if name.startswith('read') else args.requests):10.1f} us")


if __name__ == "__main__":
    main()
