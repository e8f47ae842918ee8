"""vLLM as an engine: its ``AsyncLLM`` in a supervised process of ours, and our way of choosing tokens inside its workers.

::

    front        | this process: HTTP, text, stops, guides checked; the native engine's front supervises (backends/native/front)
      | wire     |   the same messages as to a native worker (backends/native/wire)
    child        | a process of ours: tenants' turns, guides compiled before a request may run, events    child, worker, core
      | vLLM     |   its own messages to its scheduler, with ``Choose`` for each sequence
    vLLM workers | its processes: forward passes; of each row we choose the token                         v1 / v2, choose, follow
      ^ sidecar  |   a local socket back to the child: vocabulary, guides to compile, what could not be chosen

What crosses to vLLM is closed and bounded: nothing that it is given can make it raise for what a request asks. Why choose and mask:
docs/decisions/0041-vllm.md.
"""
