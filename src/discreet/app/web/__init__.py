"""Serves the curator over HTTP and in the browser.

`build` makes the application from `Settings`. The front process runs the application: it authenticates
people, passes their requests to worker processes, and waits for the replies. Only worker processes read data.
Every charge goes through the same curator and the same ledger as in a local session. The names below are
imported when they are first used, because a worker needs no FastAPI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import build
    from .server_store import Role, ServerStore
    from .settings import Settings

# The module that defines each name.
_MODULES = {"Role": "server_store", "ServerStore": "server_store", "Settings": "settings", "build": "server"}
__all__ = ["Role", "ServerStore", "Settings", "build"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
