"""Keeps the steward's secret: one 32-byte seed in a file of its own. From it the keys are derived that sign
entries (Ed25519) and seal (encrypt) secret state (AES-256-GCM).

Whoever has the seed can write entries that verify, and read the secret state of mechanisms. Whoever has only
the ledger can check every entry against the public key, and change no entry unnoticed. That the newest
entries were cut off is noticed only against an anchor, and a whole new chain only against a public key that
is known from elsewhere.
"""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .. import _require, _system
from .._errors import LedgerError

_HEADER = "discreet ledger key 1\n"
# Characters that are read of a file that should be a key. A key file has 87; the rest of a longer file does
# not matter.
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Key:
    """Signs entries and seals secret state."""

    seed: bytes = field(repr=False)

    @classmethod
    @_require.check_options
    def create(cls, path: Path, *, durable: bool = True) -> Key:
        """Create a random key in a new file that only its owner can read. `durable=False`, for a ledger that
        is thrown away with its session, does not wait for the disk."""
        seed = secrets.token_bytes(32)
        try:
            handle = _system.create_file(path)
        except FileExistsError:
            raise LedgerError(
                f"{path} exists already. A key is never overwritten: nothing was changed. If no ledger was "
                f"ever made with it, take it away."
            ) from None
        except OSError as error:
            raise _not_made(path, error) from None
        try:
            with os.fdopen(handle, "w") as file:
                file.write(_HEADER + seed.hex() + "\n")
                if durable:
                    _system.sync(file)
        except BaseException as error:
            # A key is never overwritten: half a key would make the next attempt fail.
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _not_made(path, error) from None
            raise
        return cls(seed)

    @classmethod
    def load(cls, path: Path) -> Key:
        """Return the key in a file; refuse a file that others than its owner may read or write."""
        try:
            with path.open(encoding="ascii") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read(_LONGEST)
        except FileNotFoundError:
            raise LedgerError(
                f"the key {path} is missing. Without it the ledger can be read and verified, but "
                f"nothing can be asked. Restore its copy; if it is lost, carry what was spent over to a new "
                f"ledger: docs/back-up.md."
            ) from None
        except (OSError, ValueError):
            raise LedgerError(f"the key {path} cannot be read.") from None
        if _system.is_open_to_others(mode):
            raise LedgerError(
                f"the key {path} can be read or written by others than its owner (mode "
                f"{mode & 0o777:04o}), who could write entries that "
                f"verify. Nothing was opened. Find out who may have read it, then: chmod 600 {path}"
            )
        try:
            seed = bytes.fromhex(text.removeprefix(_HEADER).strip())
        except ValueError:
            seed = b""
        if not text.startswith(_HEADER) or len(seed) != 32:
            raise LedgerError(f"{path} is not a key of a discreet ledger.")
        return cls(seed)

    @property
    def public(self) -> bytes:
        """The public key, with which anybody can check signatures."""
        return self._signer().public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._signer().sign(message)

    def seal(self, plain: bytes, context: bytes) -> bytes:
        """Encrypt a state. It can be decrypted with the same `context` only, which names what the state
        belongs to, so that no stored state can stand for another. The nonce, 12 random bytes, comes first."""
        nonce = secrets.token_bytes(12)
        return nonce + AESGCM(self._derive(b"state")).encrypt(nonce, plain, context)

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt what `seal` returned for this `context`."""
        try:
            return AESGCM(self._derive(b"state")).decrypt(sealed[:12], sealed[12:], context)
        except (InvalidTag, ValueError):
            raise LedgerError(
                "the stored state of a live mechanism does not decrypt: it was changed or moved."
            ) from None

    def blind(self, message: bytes) -> bytes:
        """Return 32 bytes that commit to a message and tell nothing of it to whoever lacks the key."""
        return hmac.digest(self._derive(b"receipt"), message, "sha256")

    def _signer(self) -> Ed25519PrivateKey:
        return _signer(self.seed)

    def _derive(self, purpose: bytes) -> bytes:
        """Return the key for one purpose. The names of purposes never change: a changed name
        would derive another key."""
        return _derive_key(self.seed, purpose)


def _not_made(path: Path, error: OSError) -> LedgerError:
    return LedgerError(f"the key {path} cannot be made: {error.strerror}. Nothing was changed.")


@lru_cache(maxsize=16)
def _signer(seed: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(_derive_key(seed, b"sign"))


@lru_cache(maxsize=32)
def _derive_key(seed: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"discreet ledger " + purpose).derive(seed)


def signed_by(public: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether `signature` on `message` was made with the key behind `public`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
