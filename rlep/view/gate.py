"""Access to the console: an ASGI layer in front of every route.

In this order: the Host is a loopback name (a rebound DNS name is not), a request of another site is refused, and nothing but
reading is done. The token of the printed address becomes a cookie, and the redirect takes it out of the address again.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from urllib.parse import urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names that a request's Host may have, with any port: ``ssh -L`` takes another one."""
TOKEN = "token"
"""Parameter of the printed address."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_ONWARD = re.compile(r"/(?![/\\])[A-Za-z0-9._~/%+-]*")
_STYLE = re.compile(r"/static/[a-z]+\.css")


class Gate:
    """The layer; ``ask`` makes the page that a browser without cookie gets."""

    def __init__(self, app: ASGIApp, token: str, ask: Callable[[], str]) -> None:
        self._app, self._token, self._ask = app, token, ask
        # browsers send cookies to every port of a host: two consoles must not overwrite each other's
        self.cookie, self._secret = f"rlep-{secrets.token_hex(4)}", secrets.token_urlsafe(32)

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

        answer = self._answer(Request(scope, receive))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """Refuse, ask or redirect; None lets the request through."""
        if reason := refused(request.headers):
            return PlainTextResponse(reason, 400 if reason.startswith("Host") else 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("the console only reads: GET", 405)
        given = request.query_params.getlist(TOKEN)
        if len(given) == 1 and _equal(given[0], self._token):
            return self._admitted(request)
        if _equal(request.cookies.get(self.cookie, ""), self._secret) or _STYLE.fullmatch(request.url.path):
            return None
        return Response(self._ask(), 401, media_type="text/html")

    def _admitted(self, request: Request) -> Response:
        """Set the cookie, and lead to the same page without the token in its address."""
        path = request.url.path if _ONWARD.fullmatch(request.url.path) else "/"
        others = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != TOKEN])
        answer = RedirectResponse(f"{path}?{others}" if others else path, 303)
        # Not strict: the redirect of an address that was clicked on another site's page would come without it. What lax adds
        # are navigations, which that site cannot read and which change nothing.
        answer.set_cookie(self.cookie, self._secret, httponly=True, samesite="lax")
        return answer


def refused(headers: Headers) -> str:
    """Return why a request is not answered, from its Host, Origin and Sec-Fetch-Site; empty where it may be."""
    host = headers.get("host", "")
    if len(headers.getlist("host")) > 1 or _name_in(f"http://{host}") not in LOCAL_NAMES:
        return "Host is not this console's"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return "Origin is another site's"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return "the request comes from another site"
    return ""


def _name_in(address: str) -> str | None:
    """The host of ``scheme://host[:port]`` without more; None for anything else."""
    try:
        parts = urlsplit(address)
        return parts.hostname if parts.netloc and parts.username is None and not parts.path else None
    except ValueError:
        return None


def _equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
