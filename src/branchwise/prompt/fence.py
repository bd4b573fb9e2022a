"""The fence around a context: two equal lines of letters that the context can't foresee.

The letters are a digest of the context itself, so a context that holds its own fence would have
to contain a part of its own SHA-256. Letters, not hexadecimal digits: many tokenizers spend a
token on every digit.
"""

from __future__ import annotations

import hashlib
import string

NONCE_LETTERS = 13  # 26**13 is just above 2**61


def nonce_of(text: str) -> str:
    """13 lower-case letters from the SHA-256 of ``text`` (UTF-8)."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    letters = []
    for _ in range(NONCE_LETTERS):
        number, letter = divmod(number, 26)
        letters.append(string.ascii_lowercase[letter])
    return "".join(letters)


def fenced(text: str) -> str:
    """``text`` between its two fence lines; ends in a line break."""
    nonce = nonce_of(text)
    return f"{nonce}\n{text}\n{nonce}\n"
