"""Limits on what is sent: a body that is too long is refused before it is read into memory."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from .errors import body_of

UPLOAD = "/steward/upload"


class _TooLong(Exception):
    """More was sent than is allowed."""


class BodyLimit:
    """Counts the bytes of a body as they come; the length that a header claims is checked first."""

    def __init__(self, app: Any, requests: int, uploads: int) -> None:
        self.app, self.requests, self.uploads = app, requests, uploads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                # There are none.
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        limit = self.uploads if scope["path"] == UPLOAD else self.requests
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        if not claimed.isdigit() or int(claimed[:20]) > limit:
            await self._refuse(scope, receive, send, limit)
            return
        total, refused = 0, False

        async def counted() -> Any:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > limit:
                raise _TooLong
            return message

        async def sent(message: Any) -> None:
            nonlocal refused
            if total > limit:
                # whatever the route made of it, this is the reason
                if not refused:
                    refused = True
                    await self._refuse(scope, receive, send, limit)
                return
            await send(message)

        try:
            await self.app(scope, counted, sent)
        except _TooLong:
            await sent({})

    async def _refuse(self, scope: Any, receive: Any, send: Any, limit: int) -> None:
        body = body_of("TooLarge", f"a request has at most {limit:,} bytes here. Nothing was done.")
        await JSONResponse(body, 413)(scope, receive, send)
