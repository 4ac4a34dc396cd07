"""Who may ask the console anything: an ASGI layer in front of every route.

In this order: the Host is one that the console listens on (a rebound DNS name is not), a request of another site is
refused, and without a session there is the login page and nothing else. The token is exchanged for a cookie by POST, so
that it stands in no address, no log and no Referer; scripts send it in a header. Where the console may change runs, a
POST needs a session of an admin token, and the session's own secret in its form.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlep.console.addresses import Addresses
from rlep.console.data import error_data
from rlep.services.pool.rpc.access import Role

COOKIE = "rlep_console"
SESSION_S = 12 * 3600
MOST_SESSIONS = 256
"""Of each role, so that no token ends the sessions of another."""
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
_NEXT = re.compile(r"/(?![/\\])[A-Za-z0-9._~/?=&%+-]*")


SESSION, FORM = "rlep.session", "rlep.form"
"""Keys of a request's scope: its ``Session`` or None, and the fields of an allowed POST."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie stands for."""

    role: Role
    csrf: str
    """Stands in this session's forms and nowhere else."""
    end: float


class Sessions:
    """Cookies that are valid now; in memory, so that a new console asks for the token again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._open = clock, OrderedDict[str, Session]()

    def open(self, role: Role) -> str:
        """A new one; the oldest of the same role goes where it has too many."""
        name = secrets.token_urlsafe(32)
        self._open[name] = Session(role, secrets.token_urlsafe(32), self._clock() + SESSION_S)
        of_role = [one for one, session in self._open.items() if session.role == role]
        for oldest in of_role[:-MOST_SESSIONS]:
            del self._open[oldest]
        return name

    def of(self, name: str | None) -> Session | None:
        """What a cookie stands for, if it is one of them."""
        found = self._open.get(name) if name is not None else None
        return found if found is not None and found.end > self._clock() else None


class Gate:
    """The layer; ``knows`` gives a token's role, ``login`` makes the login page (path to go on to, failed).

    With ``acts`` a POST goes through whose session and form allow it.
    """

    def __init__(
        self,
        app: ASGIApp,
        knows: Callable[[str], Role],
        login: Callable[[str, bool], str],
        addresses: Addresses,
        *,
        acts: bool = False,
    ) -> None:
        self._app, self._knows, self._login, self._addresses, self._acts = app, knows, login, addresses, acts
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
        if reason := refused(request.headers, self._addresses):
            return PlainTextResponse(reason, 400 if reason.startswith("Host") else 403)
        path = request.url.path
        if path == "/login" and request.method == "POST":
            return await self._exchanged(request)
        session = request.scope[SESSION] = self._sessions.of(request.cookies.get(COOKIE))
        if request.method == "POST" and self._acts:
            return await self._unless_allowed(request, session)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the console only reads: GET", 405)
        if path == "/static/console.css" or session is not None:
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._knows(token.strip()):
            return None
        if path.startswith("/api/"):
            said = error_data(401, "this needs a known token: Authorization: Bearer TOKEN")
            return Response(said, 401, {"www-authenticate": "Bearer"}, media_type="application/json")
        return self._asked(path + (f"?{request.url.query}" if request.url.query else ""), failed=False)

    async def _exchanged(self, request: Request) -> Response:
        form = await _form_of(request)
        if form is None:
            return PlainTextResponse("too long", 413)
        onward = form.get("next", "/")
        onward = onward if _NEXT.fullmatch(onward) else "/"
        role = self._knows(form.get("token", "").strip())
        if not role:
            return self._asked(onward, failed=True)
        answer = RedirectResponse(onward, 303)
        encrypted = self._addresses.tls is not None or request.headers.get("origin", "").startswith("https://")
        name = self._sessions.open(role)
        answer.set_cookie(COOKIE, name, max_age=SESSION_S, httponly=True, samesite="strict", secure=encrypted)
        return answer

    async def _unless_allowed(self, request: Request, session: Session | None) -> Response | None:
        """Why a POST goes no further; None where it may, its fields in the scope."""
        if session is None:
            return PlainTextResponse("log in first", 403)
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("the request comes from another site", 403)
        if session.role < Role.ADMIN:
            return PlainTextResponse("this token may only read", 403)
        form = await _form_of(request)
        if form is None:
            return PlainTextResponse("too long", 413)
        if not hmac.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            return PlainTextResponse("the form is not of this session: open its page again", 403)
        request.scope[FORM] = form
        return None

    def _asked(self, onward: str, *, failed: bool) -> Response:
        onward = onward if _NEXT.fullmatch(onward) else "/"
        return Response(self._login(onward, failed), 401, media_type="text/html")


async def _form_of(request: Request) -> Mapping[str, str] | None:
    """The first value of each field; None where there are too many or too long ones, or the sender has gone."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                return None
    except ClientDisconnect:
        return None
    try:
        form = parse_qs(body.decode("ascii", "replace"), max_num_fields=4)
    except ValueError:
        return None
    return {name: values[0] for name, values in form.items()}


def refused(headers: Headers, addresses: Addresses) -> str:
    """Why a request is not answered, from its Host, Origin and Sec-Fetch-Site; empty where it may be."""
    host = headers.get("host", "")
    if len(headers.getlist("host")) > 1 or not addresses.answers(host):
        return "Host is not this console's"
    origin = headers.get("origin")
    if origin is not None and not addresses.trusts(origin, host):
        return "Origin is another site's"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return "the request comes from another site"
    return ""
