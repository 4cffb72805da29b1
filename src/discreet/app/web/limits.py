"""Limits the size of request bodies: a body that is too long is refused before it is read into memory."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from .errors import body_of

# The one route that takes larger bodies.
UPLOAD = "/steward/upload"


class _TooLong(Exception):
    """The body has more bytes than the limit."""


class BodyLimit:
    """ASGI middleware that refuses a body above the limit: by its Content-Length, and by counting its bytes.

    The limits are in bytes: `uploads` for the route `UPLOAD`, `requests` for all others.
    """

    def __init__(self, app: Any, requests: int, uploads: int) -> None:
        self.app, self.requests, self.uploads = app, requests, uploads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                # The server has no routes for WebSockets.
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        limit = self.uploads if scope["path"] == UPLOAD else self.requests
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        # Only 20 digits are read: Python refuses to parse thousands, and 20 are above any limit.
        if not claimed.isdigit() or int(claimed[:20]) > limit:
            await self._refuse(scope, receive, send, limit)
            return
        total, refused = 0, False

        async def receive_counted() -> Any:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > limit:
                raise _TooLong
            return message

        async def send_or_refuse(message: Any) -> None:
            nonlocal refused
            if total > limit:
                # The route could not read the whole body, and may answer with another error: the length is
                # the true reason.
                if not refused:
                    refused = True
                    await self._refuse(scope, receive, send, limit)
                return
            await send(message)

        try:
            await self.app(scope, receive_counted, send_or_refuse)
        except _TooLong:
            await send_or_refuse({})

    async def _refuse(self, scope: Any, receive: Any, send: Any, limit: int) -> None:
        body = body_of("TooLarge", f"a request has at most {limit:,} bytes here. Nothing was done.")
        await JSONResponse(body, 413)(scope, receive, send)
