"""The embedded engine.

A request's way: ``engine`` (event loop) -> ``messages`` -> ``worker`` (engine thread), which repeats ``scheduler.plan`` ->
``step`` (forward, draw, score) -> ``scheduler.apply`` and sends each step's events back in one message. ``scheduler`` decides
who runs, ``kv`` which pages a sequence holds, ``pages`` which pages exist; these are plain code over values.
"""
