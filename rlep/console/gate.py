"""Who may ask the console anything: an ASGI layer in front of every route.

In this order: the Host is one that the console listens on (a rebound DNS name is not), a request of another site is
refused, and without a session there is the login page and nothing else. The token is exchanged for a cookie by POST, so
that it stands in no address, no log and no Referer; scripts send it in a header.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "rlep_console"
SESSION_S = 12 * 3600
MOST_SESSIONS = 256
LONGEST_FORM = 4096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers post the login form with Origin: null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_NEXT = re.compile(r"/(?![/\\])[A-Za-z0-9._~/?=&%+-]*")


class Sessions:
    """Cookies that are valid now; in memory, so that a new console asks for the token again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ends = clock, OrderedDict[str, float]()

    def open(self) -> str:
        """A new one; the oldest goes where there are too many."""
        name = secrets.token_urlsafe(32)
        self._ends[name] = self._clock() + SESSION_S
        while len(self._ends) > MOST_SESSIONS:
            self._ends.popitem(last=False)
        return name

    def holds(self, name: str | None) -> bool:
        """Whether a cookie is one of them."""
        return name is not None and self._ends.get(name, 0.0) > self._clock()


class Gate:
    """The layer; ``knows`` says whether a token is valid, ``login`` makes the login page (path to go on to, failed)."""

    def __init__(self, app: ASGIApp, knows: Callable[[str], bool], login: Callable[[str, bool], str]) -> None:
        self._app, self._knows, self._login = app, knows, login
        self._sessions = Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":  # no WebSockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        request = Request(scope, receive)
        answer = await self._answer(request)
        await (answer or self._app)(scope, receive, send_with_headers)

    async def _answer(self, request: Request) -> Response | None:
        """What the gate says itself; None lets the request through."""
        if reason := refused(request.headers):
            return PlainTextResponse(reason, 400 if reason.startswith("Host") else 403)
        path = request.url.path
        if path == "/login" and request.method == "POST":
            return await self._exchanged(request)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the console only reads: GET", 405)
        if path == "/static/console.css" or self._sessions.holds(request.cookies.get(COOKIE)):
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._knows(token.strip()):
            return None
        if path.startswith("/api/"):
            return PlainTextResponse("Authorization: Bearer TOKEN", 401, {"www-authenticate": "Bearer"})
        return self._asked(path + (f"?{request.url.query}" if request.url.query else ""), failed=False)

    async def _exchanged(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                return PlainTextResponse("too long", 413)
        form = parse_qs(body.decode("ascii", "replace"), max_num_fields=4)
        onward = form.get("next", ["/"])[0]
        onward = onward if _NEXT.fullmatch(onward) else "/"
        if not self._knows(form.get("token", [""])[0].strip()):
            return self._asked(onward, failed=True)
        answer = RedirectResponse(onward, 303)
        answer.set_cookie(COOKIE, self._sessions.open(), max_age=SESSION_S, httponly=True, samesite="strict")
        return answer

    def _asked(self, onward: str, *, failed: bool) -> Response:
        onward = onward if _NEXT.fullmatch(onward) else "/"
        return Response(self._login(onward, failed), 401, media_type="text/html")


def refused(headers: Headers) -> str:
    """Why a request is not answered, from its Host, Origin and Sec-Fetch-Site; empty where it may be."""
    host = headers.get("host", "")
    if _name_of(f"http://{host}") not in LOCAL_NAMES:
        return "Host is not this console's"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return "Origin is another site's"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return "the request comes from another site"
    return ""


def _name_of(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        return parts.hostname if parts.netloc and parts.username is None and not parts.path else None
    except ValueError:
        return None
