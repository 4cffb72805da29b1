"""Who others have identified: the header of a proxy, and an OpenID provider that this file runs on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from discreet import InvalidInput
from discreet.app.web import Role, Settings, build

from .running import in_a_loop

jose = pytest.importorskip("joserfc", reason="joserfc is not installed: NO LOG-IN BY OIDC WAS TESTED")
from joserfc import jwk, jwt  # noqa: E402

PEOPLE = (("ann@example.org", Role.ANALYST), ("sam", Role.STEWARD))


class Client:
    """Sends requests to an application in this process, from an address."""

    def __init__(self, app, client=("127.0.0.1", 1), cookies=None):
        transport = httpx.ASGITransport(app=app, client=client)
        self.sender = httpx.AsyncClient(transport=transport, base_url="http://testserver", cookies=cookies)

    @property
    def cookies(self):
        return self.sender.cookies

    def get(self, path, **options):
        return in_a_loop(lambda: self.sender.get(path, **options))

    def post(self, path, **options):
        return in_a_loop(lambda: self.sender.post(path, **options))


def application(tmp_path, **options):
    app = build(Settings(state=tmp_path / "state", **options))
    for name, role in PEOPLE:
        app.state.store.add_person(name, role)
    return app


def me(client, **options):
    return client.get("/api/v1/me", **options)


class TestProxy:
    HEADER = MappingProxyType({"X-Remote-User": "sam"})

    @pytest.fixture
    def app(self, tmp_path):
        app = application(tmp_path, trust_header="X-Remote-User", trust_from=("10.1.0.0/16", "::1"))
        yield app
        app.state.store.close()

    @pytest.mark.parametrize("address", ["10.1.2.3", "::1", "::ffff:10.1.2.3"])
    def test_its_header_says_who_asks(self, app, address):
        client = Client(app, client=(address, 1))
        assert me(client, headers=self.HEADER).json() == {"name": "sam", "role": "steward"}
        assert client.get("/account", headers=self.HEADER).status_code == 200

    @pytest.mark.parametrize("address", ["10.2.0.1", "127.0.0.1", "::2", "::ffff:10.2.0.1"])
    def test_from_elsewhere_it_says_nothing(self, app, address):
        assert me(Client(app, client=(address, 1)), headers=self.HEADER).status_code == 401

    def test_a_name_that_the_steward_has_not_entered_is_nobody(self, app):
        client = Client(app, client=("10.1.2.3", 1))
        reply = me(client, headers={"X-Remote-User": "mallory"})
        assert reply.status_code == 403
        assert "'mallory' is not among the people" in reply.json()["error"]["message"]
        assert me(client).status_code == 401, "no header"
        assert me(client, headers={"X-Remote-User": ""}).status_code == 401
        # one that the client has sent, and the proxy has only added to
        twice = [("X-Remote-User", "sam"), ("X-Remote-User", "ann@example.org")]
        assert me(client, headers=twice).status_code == 401

    def test_a_token_goes_first_and_a_page_of_another_site_can_send_no_form(self, app):
        store, client = app.state.store, Client(app, client=("10.1.2.3", 1))
        token, _ = store.issue_token("ann@example.org", 1)
        both = {**self.HEADER, "Authorization": f"Bearer {token}"}
        assert me(client, headers=both).json()["name"] == "ann@example.org"
        added = {"name": "eve", "role": "steward"}
        assert client.post("/steward/people", data=added, headers=self.HEADER).status_code == 403
        assert client.post("/api/v1/people", json=added, headers=self.HEADER).status_code == 403
        page = client.get("/account", headers=self.HEADER).text
        csrf = re.search(r'name="csrf" value="(\w+)"', page)[1]
        assert client.post("/logout", data={"csrf": csrf[::-1]}, headers=self.HEADER).status_code == 403
        assert client.post("/logout", data={"csrf": csrf}, headers=self.HEADER).status_code == 303  # fmt: skip
        assert "Set a password" not in page
        refused = client.post("/account", data={"csrf": csrf, "password": "p" * 12, "again": "p" * 12}, headers=self.HEADER)  # fmt: skip
        assert refused.status_code == 400
        assert "you have come without one" in refused.text

    def test_whom_to_trust_is_said(self, tmp_path):
        for wrong in ({"trust_header": "X-User"}, {"trust_from": ("::1",)}):
            with pytest.raises(InvalidInput, match="give --trust-header with --from"):
                Settings(state=tmp_path, **wrong)
        with pytest.raises(InvalidInput, match=r"--from is an address or a network: .*localhost"):
            Settings(state=tmp_path, trust_header="X-User", trust_from=("localhost",))
        for name in ("", "X Y", "Host", "Cookie", "Authorization", "X-Us\u00e9r", "X-User\n"):
            with pytest.raises(InvalidInput, match="is no header that only a proxy sets"):
                Settings(state=tmp_path, trust_header=name, trust_from=("::1",))


class Provider:
    """A small OpenID provider: `claims` and `head` change what it signs, `key` with what."""

    def __init__(self):
        self.key = self.published = jwk.RSAKey.generate_key(2048, {"kid": "1"})
        self.claims, self.head, self.codes, self.asked = {}, {}, {}, []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, facts, code=200):
                body = json.dumps(facts).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                pages = {
                    "/keys": {"keys": [provider.published.as_dict(private=False)]},
                    "/.well-known/openid-configuration": provider.discovery,
                }
                self.reply(pages[self.path])

            def do_POST(self):
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.asked.append(form)
                known = provider.codes.pop(form["code"][0], None)
                digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                if known is None or known["code_challenge"] != [challenge]:
                    self.reply({"error": "invalid_grant"}, 400)
                else:
                    self.reply(
                        {"access_token": "x", "token_type": "Bearer", "id_token": provider.sign(known)}
                    )

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        self.discovery = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sign(self, asked):
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": "discreet", "sub": "7", "exp": now + 300, "iat": now,
            "nonce": asked["nonce"][0], "email": "ann@example.org", "email_verified": True,
        }  # fmt: skip
        claims = {k: v for k, v in (claims | self.claims).items() if v is not None}
        head = {"alg": "RS256", "kid": "1"} | self.head
        if head["alg"] == "none":
            parts = (
                base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims)
            )
            return b".".join([*parts, b""]).decode()
        return jwt.encode(head, claims, self.key)

    def consent(self, address):
        """What the browser brings back when its user has said yes."""
        asked = parse_qs(urlsplit(address).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert "openid" in asked["scope"][0].split()
        code = f"code{len(self.codes)}{time.monotonic_ns()}"
        self.codes[code] = asked
        return urlsplit(asked["redirect_uri"][0]).path, {"code": code, "state": asked["state"][0]}


class TestOpenId:
    @pytest.fixture
    def provider(self):
        provider = Provider()
        yield provider
        provider.server.shutdown()
        provider.server.server_close()

    @pytest.fixture
    def app(self, tmp_path, provider):
        app = application(
            tmp_path, oidc=provider.issuer, oidc_client="discreet", oidc_secret="hidden", logins=1000
        )
        yield app
        app.state.store.close()

    def begun(self, client, provider, page="/data/health"):
        sent = client.get("/login/oidc", params={"next": page})
        assert sent.status_code == 303
        assert "samesite=lax" in sent.headers["set-cookie"].lower()
        return provider.consent(sent.headers["location"])

    def test_who_is_identified_is_logged_in_and_taken_back(self, app, provider):
        client = Client(app)
        assert "/login/oidc?next=/" in client.get("/login").text
        path, query = self.begun(client, provider)
        done = client.get(path, params=query)
        assert done.status_code == 200
        assert 'content="0;url=/data/health"' in done.text, "no redirect: a strict cookie would not be sent"
        assert me(client).json() == {"name": "ann@example.org", "role": "analyst"}
        assert provider.asked[0]["client_secret"] == ["hidden"]
        # their session ends with any token of theirs that is revoked, and with them
        _, token = app.state.store.issue_token("ann@example.org", 1)
        app.state.store.revoke_token(token)
        assert me(client).status_code == 401

    @pytest.mark.parametrize(
        ("claims", "head"),
        [
            ({"iss": "https://evil.example"}, {}),
            ({"aud": "another"}, {}),
            ({"aud": ["discreet", "another"], "azp": "another"}, {}),
            ({"nonce": "guessed"}, {}),
            ({"nonce": None}, {}),
            ({"exp": 1_000_000_000}, {}),
            ({"exp": None}, {}),
            ({"iat": 9_000_000_000}, {}),
            ({"sub": None}, {}),
            ({"email_verified": False}, {}),
            ({"email_verified": None}, {}),
            ({"email": None}, {}),
            ({"email": ["ann@example.org"]}, {}),
            ({}, {"alg": "none"}),
        ],
        ids=str,
    )
    def test_a_token_that_says_anything_else_is_refused(self, app, provider, claims, head):
        client = Client(app)
        provider.claims, provider.head = claims, head
        path, query = self.begun(client, provider)
        refused = client.get(path, params=query)
        assert refused.status_code == 401
        assert "did not identify you" in refused.text
        assert me(client).status_code == 401
        # and with the token as it should be, the same way is open
        provider.claims, provider.head = {}, {}
        path, query = self.begun(client, provider)
        assert client.get(path, params=query).status_code == 200

    def test_keys_that_the_provider_has_not_published_sign_nothing(self, app, provider):
        client = Client(app)
        provider.key = jwk.RSAKey.generate_key(2048, {"kid": "1"})
        path, query = self.begun(client, provider)
        assert client.get(path, params=query).status_code == 401
        # the public key as the secret of HMAC, the oldest confusion of algorithms
        pem = provider.published.as_pem(private=False)
        provider.key, provider.head = jwk.OctKey.import_key(base64.b64encode(pem)), {"alg": "HS256"}
        path, query = self.begun(client, provider)
        assert client.get(path, params=query).status_code == 401

    def test_a_log_in_is_finished_once_and_where_it_was_begun(self, app, provider):
        client, other = Client(app), Client(app)
        path, query = self.begun(client, provider)
        assert other.get(path, params=query).status_code == 401, "another browser, without its cookie"
        assert client.get(path, params=query | {"state": "x"}).status_code == 401
        kept = dict(client.cookies)
        assert client.get(path, params=query).status_code == 200
        # somebody has copied both the cookie and the address, and the provider would take the code again
        provider.codes[query["code"]] = {"nonce": ["?"], "code_challenge": ["?"]}
        asked = len(provider.asked)
        assert Client(app, cookies=kept).get(path, params=query).status_code == 401
        assert len(provider.asked) == asked, "refused before anybody was asked"

    def test_a_log_in_that_took_too_long_is_refused(self, app, provider, monkeypatch):
        client = Client(app)
        path, query = self.begun(client, provider)
        now = time.time()
        monkeypatch.setattr("discreet.app.web.auth.time.time", lambda: now + 601)
        assert client.get(path, params=query).status_code == 401

    @pytest.mark.parametrize("at", ["nan", "inf", "99999999999", "-1", "0"])
    def test_a_time_that_the_browser_made_up_is_refused(self, app, provider, at):
        client = Client(app)
        path, query = self.begun(client, provider)
        ((name, value),) = dict(client.cookies).items()
        assert "at=" in value
        forged = {name: re.sub(r"at=\d+", f"at={at}", value)}
        assert Client(app, cookies=forged).get(path, params=query).status_code == 401
        assert client.get(path, params=query).status_code == 200

    def test_log_ins_by_the_provider_shut_nobody_out(self, tmp_path, provider):
        """They counted as guesses: ten of an address in a minute, and no token was taken from it."""
        app = application(
            tmp_path, oidc=provider.issuer, oidc_client="discreet", oidc_secret="hidden", logins=2
        )
        client = Client(app)
        for _ in range(4):
            path, query = self.begun(client, provider)
            assert client.get(path, params=query | {"state": "x"}).status_code == 401
        token, _ = app.state.store.issue_token("ann@example.org", 1)
        form = {"token": token, "next": "/"}
        assert client.post("/login", data=form, headers={"origin": "http://testserver"}).status_code == 303
        app.state.store.close()

    def test_who_has_no_account_is_told_so(self, app, provider):
        client = Client(app)
        provider.claims = {"email": "mallory@example.org"}
        path, query = self.begun(client, provider)
        refused = client.get(path, params=query)
        assert refused.status_code == 403
        assert "is not among the people of this server" in refused.text

    @pytest.mark.parametrize(
        "change",
        [
            {"issuer": "https://evil.example"},
            {"token_endpoint": "http://evil.example/token"},
            {"jwks_uri": "http://evil.example/keys"},
        ],
        ids=str,
    )
    def test_a_provider_that_is_another_or_unsafe_is_not_used(self, app, provider, change):
        provider.discovery |= change
        reply = Client(app).get("/login/oidc")
        assert reply.status_code == 503
        assert not provider.asked

    def test_no_page_elsewhere_is_the_next_one(self, app, provider):
        client = Client(app)
        path, query = self.begun(client, provider, page="//evil.example")
        assert 'content="0;url=/"' in client.get(path, params=query).text

    def test_its_address_is_safe_and_its_routes_are_only_there_with_it(self, tmp_path):
        for wrong in (
            {"oidc": "http://provider.example", "oidc_client": "x"},
            {"oidc": "https://provider.example"},
        ):
            with pytest.raises(InvalidInput, match="--oidc is the address of a provider"):
                Settings(state=tmp_path, **wrong)
        app = application(tmp_path)
        for path in ("/login/oidc", "/login/back"):
            assert Client(app).get(path).status_code == 404
        app.state.store.close()
