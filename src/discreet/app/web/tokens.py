"""Tokens: 256 random bits behind a public id, kept as HMAC-SHA-256 under the server's key.

The token is random, so that a slow hash would add nothing but time to every request; the key makes a stolen
table of digests useless by itself. People's passwords are not random, and are hashed with argon2id.
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
    """Return the server's key; made at the first start, readable by its owner only."""
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
    well_formed = len(parts) == 3 and parts[0] == PREFIX and len(parts[1]) == 16 and len(parts[2]) == 43
    return parts[1] if well_formed and token.isascii() else None


def digest(key: bytes, text: str) -> bytes:
    """Return what is kept of a token or of a cookie."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def same(first: bytes, second: bytes) -> bool:
    """Compare two digests in constant time."""
    return hmac.compare_digest(first, second)
