"""Makes and compares tokens: a public id and 256 random bits, stored as their HMAC-SHA-256 under the server's
key.

A token is random and cannot be guessed, so that a slow hash would add nothing but time to every request. With
the key, stolen digests are useless by themselves. Passwords can be guessed, and are hashed with argon2id
(`ServerStore.set_password`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from ..._errors import LedgerError

PREFIX = "dsc"


def load_key(path: Path) -> bytes:
    """Return the server's key; it is made at the first start, in a file that only its owner can read."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != 32:
            raise LedgerError(
                f"{path} is not a server key of 32 bytes. Nothing was started. Put its backup back, or "
                f"remove it: then all tokens and log-ins are void."
            ) from None
        return key
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


def new_token() -> tuple[str, str]:
    """Return a new token and its public id."""
    public = secrets.token_hex(8)
    return f"{PREFIX}_{public}_{secrets.token_urlsafe(32)}", public


def id_of(token: str) -> str | None:
    """Return the public id of a token; None for a text that is no token."""
    parts = token.split("_", 2)
    # 8 bytes are 16 hexadecimal digits, 32 bytes are 43 characters of base64 (`new_token`).
    well_formed = len(parts) == 3 and parts[0] == PREFIX and len(parts[1]) == 16 and len(parts[2]) == 43
    return parts[1] if well_formed and token.isascii() else None


def digest(key: bytes, text: str) -> bytes:
    """Return the digest of a token or a cookie, which is what the store keeps."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def same(first: bytes, second: bytes) -> bool:
    """Return whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(first, second)
