"""Guides: what an output must conform to (a JSON schema, a grammar, a regular expression, a choice), followed token by token.

A guide is a formal language over bytes; a model's tokens are byte strings. So at each step there is an exact set of tokens after which
the text can still become a member of the language, and drawing only from that set makes every text that ends one. The set is a *mask*: a
bit per token of the vocabulary, put over the logits before any control of sampling sees them. Nothing else of the draw changes, so the
bits of an answer depend on request and model alone here too.

::

    text of the request                                                          above every engine
      | translate   schema.py, pattern.py, terminals.py: into the compiler's notation; what it would weaken is rewritten or refused
      | try         check.py -> process.py: compiled and walked a little where it may crash or stall: 400, or it is taken
      v
    notation, as text                                                            crosses to the engine
      | compile     compiled.py: for the model's vocabulary, in a thread, kept for the requests to come
      v
    Matcher, one per sequence                                                    matcher.py
      | mask        fill(): which tokens may come next, computed beside the forward pass
      | draw        the sampler, under the mask
      | consume     go on by the token that was drawn; where the text conforms, the end of sequence is allowed too
      ' jump-forward  forced(): text without a choice is drafted, and verified in one pass like any draft

Hostile input is why it is tried first: a guide of a few kilobytes can overflow a compiler's stack or take it minutes, and neither a thread
nor an engine can be protected from that; a process can. Why jump-forward drafts and does not insert: text that is forced in tokens of
the library's choice is not how the model would have cut it, and it continues badly. Decisions: docs/decisions/0004-guides.md.
"""
