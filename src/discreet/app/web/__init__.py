"""The server: the curator as a service, over HTTP and in the browser.

`build` makes the application from `Settings`. The front process authenticates and waits; worker processes
read data. Everything that costs goes through the same curator and the same ledger as a local session. Names
are loaded when they are first used: a worker needs no FastAPI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import build
    from .settings import Settings
    from .store import Role, ServerStore

_HOMES = {"Role": "store", "ServerStore": "store", "Settings": "settings", "build": "server"}
__all__ = ["Role", "ServerStore", "Settings", "build"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
