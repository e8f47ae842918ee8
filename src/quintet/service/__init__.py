"""One request: prompts x samples out to a backend, their events joined and counted on the way back.

``Service.prepare`` raises everything that can be refused, before the status line is sent. After that a request, a ``Job``, ends with
exactly one ``Finished`` or ``Failed``, and leaving early (closing ``events()``, or ``cancel()``) stops its work in the backend.
"""
