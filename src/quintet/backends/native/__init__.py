"""The embedded engine.

A request's way: ``front/engine`` (event loop) -> ``wire/messages`` -> ``worker/worker`` (a process or a thread), which repeats
``scheduler.plan`` -> ``worker/step`` (forward, draw, score) -> ``scheduler.apply`` and sends each step's events back in one message. In
``schedule/``, which is plain code over values, ``scheduler`` decides who runs, ``groups`` who computes a prompt for whom, ``kv`` which
pages a sequence holds, ``pages`` which pages exist; ``emit`` makes the events.
"""
