"""Decides who sends a request and whether they may: tokens, cookies, what a proxy or an OpenID provider says,
the origin of a form, rates.

Every route names the roles that may use it, with `allow`. FastAPI would serve a route that names none to
everybody: tests/web/test_authorization.py goes through all routes and fails for one that is not in its list.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from . import bodies
from .bodies import LARGE, SMALL, Body
from .front_desk import FrontDesk
from .problems import HTTPError
from .server_store import Dataset, Person, Role, ServerStore, same
from .settings import Settings, is_safe

COOKIE = "discreet_session"
# The address of the description of a body in the OpenAPI document.
SCHEMA = "#/components/schemas/{model}"
# The route that takes files, forms that may be large, and the seconds that a body or a file may take to
# arrive. The seconds are chosen by hand, not tuned.
UPLOAD = "/steward/upload"
LARGE_FORMS = (
    "/steward/add",
    "/steward/check",
    "/steward/data/{name}/policy",
    "/data/{name}/copies",
    "/data/{name}/copies/preview",
)
BODY_SECONDS, UPLOAD_SECONDS = 60.0, 1800.0
# How long a log-in at an OpenID provider may take, in seconds, and the algorithms by which it may sign: no
# "none", and none whose key the server would have to keep. The seconds are chosen by hand, not tuned.
BEGUN = 600.0
SIGNED_BY = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
# Methods that change nothing, so that they need no CSRF token.
SAFE = ("GET", "HEAD")
EVERYBODY = (Role.STEWARD, Role.ANALYST, Role.AUDITOR)
ASKERS = (Role.STEWARD, Role.ANALYST)


def cookie_name(settings: Settings) -> str:
    """Return the name of the session's cookie. Over TLS its prefix `__Host-` keeps other hosts from
    setting it."""
    return f"__Host-{COOKIE}" if settings.secure else COOKIE


# What is said to whom others have identified, and the steward has not entered.
UNKNOWN = "{!r} is not among the people of this server. Ask its steward to be added. Nothing was done."


class OpenId:
    """Identifies people by an OpenID provider: the authorization code flow, with PKCE, state and nonce
    (OpenID Connect Core 1.0, section 3.1; RFC 7636).

    Guarantee: `finish` returns a name only if the provider has signed it, for this server and for a log-in
               that this browser has begun here in the last ten minutes, and that was not finished before.
    Proof:     the state in the address must be that of the browser's cookie, and is used up. The token is
               that of this log-in's nonce; its signature is checked with the keys that the issuer publishes,
               by a list of asymmetric algorithms, its issuer, audience and times by `joserfc`.
    Assumes:   TLS to the provider, which `Settings` requires of other machines; and that its `claim` names
               one person. An address counts only where the provider says that it is verified.
    """

    def __init__(self, settings: Settings) -> None:
        self._issuer, self._client = settings.oidc or "", settings.oidc_client or ""
        self._secret, self._claim = settings.oidc_secret, settings.oidc_claim
        # Log-ins that were finished, and when: a cookie and an address that somebody has copied are refused.
        self._finished: OrderedDict[str, float] = OrderedDict()

    def _get(self, address: str) -> dict[str, Any]:
        import httpx

        facts: dict[str, Any] = httpx.get(address, timeout=10).raise_for_status().json()
        return facts

    def _discovered(self) -> dict[str, Any]:
        """Return what the provider says of itself; its addresses have to be as safe as its own."""
        facts = self._get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        endpoints = [facts[name] for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        if facts["issuer"] != self._issuer or not all(map(is_safe, endpoints)):
            raise ValueError("another issuer, or an address without TLS")
        return facts

    def begin(self, back: str, page: str) -> tuple[str, str]:
        """Return the address at the provider to which a browser goes, and the value of the cookie that it
        brings `back`; `page` is where it goes afterwards."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code", "client_id": self._client, "redirect_uri": back, "state": state,
            "scope": "openid email profile", "nonce": nonce, "code_challenge": digest,
            "code_challenge_method": "S256",
        }  # fmt: skip
        address = self._discovered()["authorization_endpoint"]
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "page": page, "at": int(time.time())}
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}", urlencode(kept)

    def finish(self, back: str, cookie: str, query: Mapping[str, str]) -> tuple[str, str]:
        """Return the name of the person who comes back, and the page where they go; raise an error if they
        are not identified."""
        kept = dict(parse_qsl(cookie))
        now, state = time.time(), kept.get("state", "")
        is_recent = 0 <= now - float(kept.get("at", "nan")) <= BEGUN
        if not state or not same(state.encode(), query.get("state", "").encode()) or not is_recent:
            raise ValueError("this log-in was not begun here")
        while self._finished and next(iter(self._finished.values())) < now - BEGUN:
            self._finished.popitem(last=False)
        if self._finished.setdefault(state, now) != now:
            raise ValueError("this log-in was finished before")
        claims = self._claims(back, query["code"], kept)
        name = claims[self._claim]
        if not isinstance(name, str) or (self._claim == "email" and claims.get("email_verified") is not True):
            raise ValueError("no name, or an address that is not verified")
        return name, kept.get("page", "")

    def _claims(self, back: str, code: str, kept: dict[str, str]) -> dict[str, Any]:
        """Return what the provider has signed for a code."""
        import httpx
        from joserfc import jwk, jwt

        facts = self._discovered()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
        form |= {"client_id": self._client, "code_verifier": kept["verifier"]}
        form |= {} if self._secret is None else {"client_secret": self._secret}
        reply = httpx.post(facts["token_endpoint"], data=form, timeout=10).raise_for_status().json()
        published: Any = self._get(facts["jwks_uri"])
        keys = jwk.KeySet.import_key_set(published)
        claims: dict[str, Any] = jwt.decode(reply["id_token"], keys, algorithms=SIGNED_BY).claims
        needed: Any = {name: {"essential": True} for name in ("iss", "aud", "nonce", "exp", "iat", "sub")}
        values = {"iss": self._issuer, "aud": self._client, "nonce": kept["nonce"]}
        for name, value in values.items():
            needed[name]["value"] = value
        jwt.JWTClaimsRegistry(leeway=60, **needed).validate(claims)
        if claims.get("azp", self._client) != self._client:
            raise ValueError("a token for somebody else")
        return claims


class Rates:
    """Limits rates with a token bucket for each key (a person or an address).

    A bucket holds at most `burst` tokens (not those by which people log in) and gains `rate` of them per
    second. Beyond `capacity` keys the one that was used least recently is forgotten, which fills its bucket.
    That limit bounds memory, and is chosen by hand.
    """

    def __init__(self, rate: float, burst: float, capacity: int = 10_000) -> None:
        self.rate, self.burst, self.capacity = rate, burst, capacity
        # By key: the tokens that are left, and when that was computed.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Take a token from the bucket of a key; return whether there was one."""
        now = time.monotonic()
        tokens, computed_at = self._buckets.pop(key, (self.burst, now))
        tokens = min(self.burst, tokens + (now - computed_at) * self.rate)
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > self.capacity:
            self._buckets.popitem(last=False)
        return tokens >= 1

    def give_back(self, key: str) -> None:
        """Return a token to the bucket of a key."""
        tokens, computed_at = self._buckets.get(key, (self.burst, time.monotonic()))
        self._buckets[key] = (min(self.burst, tokens + 1), computed_at)


class Gate:
    """Identifies who sends a request, and limits how often."""

    def __init__(self, settings: Settings, store: ServerStore) -> None:
        self.settings, self.store = settings, store
        self.rates = Rates(settings.rate, settings.burst)
        self.logins = Rates(settings.logins / 60, settings.logins)
        self.oidc = None if settings.oidc is None else OpenId(settings)

    def identify(self, request: Request) -> Person:
        """Return the person whose token or cookie a request carries; refuse a request without a valid one."""
        header = request.headers.get("authorization", "")
        if header:
            scheme, _, token = header.partition(" ")
            who = self.store.by_token(token.strip()) if scheme.lower() == "bearer" else None
        elif (name := self._by_proxy(request)) is not None:
            who = self.store.by_name(name)
            if who is None:
                raise HTTPError("Forbidden", UNKNOWN.format(name[:64]))
        else:
            cookie = request.cookies.get(cookie_name(self.settings))
            who = self.store.by_cookie(cookie) if cookie else None
        if who is None:
            raise HTTPError(
                "NotLoggedIn", "a valid token is needed: Authorization: Bearer dsc_... Nothing was done.",
                {"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        return who

    def _by_proxy(self, request: Request) -> str | None:
        """Return the name in the header of a proxy that the steward trusts; None from any other address."""
        header, client = self.settings.trust_header, request.client
        if header is None or client is None:
            return None
        # "::ffff:127.0.0.1" is 127.0.0.1, as a socket for both kinds of addresses writes it
        address: Any = ip_address(client.host)
        address = getattr(address, "ipv4_mapped", None) or address
        names = request.headers.getlist(header)
        trusted = any(address in network for network in self.settings.trusted)
        return names[0] if trusted and len(names) == 1 and names[0] else None

    def person(self, request: Request) -> Person:
        """Return the person who sends a request; refuse it if the person is unknown or sends too many, or if
        a page of another site sent it."""
        who = self.identify(request)
        # A person identified by an access token has no CSRF token: a browser adds a cookie to forms of other
        # sites, too, and a proxy its header, but none adds an access token by itself.
        if who.csrf is not None and request.method not in SAFE:
            check_origin(request)
            sent = request.headers.get("x-csrf-token", "")
            if not same(sent.encode(), who.csrf.encode()):
                raise HTTPError(
                    "Forbidden", "the form was not sent by this page. Nothing was done. Load it again."
                )
        if not self.rates.take(who.name):
            raise HTTPError("TooManyRequests", "too many requests. Nothing was done.", {"Retry-After": "1"})
        return who


def check_origin(request: Request) -> None:
    """Refuse a request that a page of another site sent, by its headers Origin and Sec-Fetch-Site, if any."""
    origin = request.headers.get("origin")
    try:
        origin_host = None if origin is None else urlsplit(origin).netloc
    except ValueError:
        # This is no URL, and so not the origin of a page of this server.
        origin_host = ""
    if origin_host is not None and origin_host != request.headers.get("host"):
        raise HTTPError("Forbidden", "this came from another site. Nothing was done.")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPError("Forbidden", "this came from another site. Nothing was done.")


def check_role(person: Person, roles: tuple[Role, ...]) -> None:
    """Refuse a person who has none of these roles."""
    if person.role not in roles:
        raise HTTPError("Forbidden", f"this is not for the role {person.role}. Nothing was done.")


def allow(*roles: Role) -> Callable[[Request], Awaitable[Person]]:
    """Return a FastAPI dependency that gives the person of a request, and refuses other roles than these."""

    async def allowed(request: Request) -> Person:
        gate: Gate = request.app.state.gate
        person = gate.person(request)
        check_role(person, roles)
        return person

    return allowed


def granted(request: Request, name: str, person: Person) -> Dataset:
    """Return a dataset that a person may use; an unknown one and one not granted give the same error."""
    dataset = request.app.state.store.dataset(name, person)
    if dataset is None:
        raise HTTPError("NotFound", "there is no dataset of this name that was granted to you.")
    return dataset  # type: ignore[no-any-return]


def desk_of(request: Request) -> FrontDesk:
    desk: FrontDesk = request.app.state.desk
    return desk


def store_of(request: Request) -> ServerStore:
    store: ServerStore = request.app.state.store
    return store


def sent(kind: type[Body], who: Any, *, parse: bool = True) -> Any:
    """Return the dependency that reads the JSON body of a route, and with `parse` makes a `kind` of it;
    without, a worker does. `who` is the parameter type of the route's person: FastAPI solves it first, so
    that no body of a stranger is read."""

    async def read(request: Request, person: Any) -> Any:
        received = await request.body()
        return bodies.parse(kind, received) if parse else received

    read.__annotations__["person"] = who
    read.kind = kind  # type: ignore[attr-defined]
    return Depends(read)


class Bounded(APIRoute):
    """A route that reads at most so many bytes of a body, for at most so long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        kinds = [getattr(dependency.call, "kind", None) for dependency in self.dependant.dependencies]
        self.kind: type[Body] | None = next(filter(None, kinds), None)
        if self.kind is not None:
            schema = {"$ref": SCHEMA.format(model=self.kind.__name__)}
            content = {"application/json": {"schema": schema}}
            self.openapi_extra = {"requestBody": {"required": True, "content": content}}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            settings = request.app.state.settings
            most = self.kind.most_bytes if self.kind else LARGE if self.path in LARGE_FORMS else SMALL
            most, seconds = min(most, settings.request_bytes), BODY_SECONDS
            if self.path == UPLOAD:
                most, seconds = settings.upload_bytes, UPLOAD_SECONDS
            return await handler(BoundedRequest(request, most, seconds))

        return bounded


class BoundedRequest(Request):
    """Reads at most `most` bytes of a body, for at most `seconds`: by its Content-Length, and by counting."""

    def __init__(self, request: Request, most: int, seconds: float) -> None:
        super().__init__(request.scope, request.receive)
        self._most, self._seconds = most, seconds

    async def stream(self) -> AsyncGenerator[bytes]:
        claimed = self.headers.get("content-length", "0")
        # Only 20 digits are read: Python refuses to parse thousands, and 20 are above any limit.
        total = int(claimed[:20]) if claimed.isascii() and claimed.isdigit() else self._most + 1
        end, parts = time.monotonic() + self._seconds, super().stream()
        received = 0
        try:
            while max(total, received) <= self._most:
                part = await asyncio.wait_for(anext(parts), end - time.monotonic())
                received += len(part)
                yield part
        except StopAsyncIteration:
            return
        except (TimeoutError, ClientDisconnect):
            raise HTTPError(
                "TimeLimit", "the request took too long to arrive. Nothing was done.", status=408
            ) from None
        raise HTTPError("TooLarge", f"this request has at most {self._most:,} bytes here. Nothing was done.")
