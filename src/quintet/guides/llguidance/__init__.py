"""llguidance, as it was when this package was built: the files beside this one are put here by CMakeLists.txt, with their licence.

Which one follows a guide must not depend on what else is installed: an older one lets texts get past some schemas, and vLLM asks for an
older one (docs/decisions/0041-vllm.md). Types are those of the package of that name, which the build has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
else:
    from quintet.guides.llguidance._lib import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
    from quintet.guides.llguidance._tokenizer import TokenizerWrapper

__all__ = ["LLMatcher", "LLParserLimits", "LLTokenizer", "TokenizerWrapper", "regex_to_lark"]
