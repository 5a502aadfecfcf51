"""How much of a prompt each worker holds in its prefix cache, as far as the router knows."""

from .block_keys import block_keys, bytes_of_blocks, prompt_seed
from .cache_view import CacheView, PromptPrefix
from .index import PrefixIndex

__all__ = ["CacheView", "PrefixIndex", "PromptPrefix", "block_keys", "bytes_of_blocks", "prompt_seed"]
