"""The embedded engine.

A request's way: ``engine`` (event loop) -> ``messages`` -> ``worker`` (engine thread), which repeats ``scheduler.plan`` ->
``step`` (forward, draw, score) -> ``scheduler.apply`` and sends each step's events back in one message. ``scheduler`` decides
who runs, ``groups`` who computes a prompt for whom, ``kv`` which pages a sequence holds, ``pages`` which pages exist, ``emit`` makes
the events; these are plain code over values.
"""
