"""The server: the curator as a service, over HTTP and in the browser.

`build` makes the application from `Settings`. The front process authenticates and waits; worker processes
read data. Everything that costs goes through the same curator and the same ledger as a local session.
"""

from .server import build
from .settings import Settings
from .store import Role, ServerStore

__all__ = ["Role", "ServerStore", "Settings", "build"]
