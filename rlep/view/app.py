"""The console's routes. Every page is a GET whose state is in its address, and works without a script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rlep.core.errors import RlepError
from rlep.services.pool.values import PoolPlace
from rlep.view import pages, pool_pages
from rlep.view.actor_page import actors
from rlep.view.charts import ChartLook
from rlep.view.compare_page import compare
from rlep.view.gate import Gate
from rlep.view.pool_places import PoolPlaces
from rlep.view.prompt_page import prompt
from rlep.view.run_files import RunPlace, find_runs, find_studies, newest
from rlep.view.run_page import RunQuery, overview, run
from rlep.view.state import mark_of
from rlep.view.study_pages import studies, study
from rlep.view.templating import rendered


class ShortNumber(IntegerConvertor):
    """A number of at most nine digits: steps, groups and pools have no more, and no path takes many more."""

    regex = "[0-9]{1,9}"


register_url_convertor("number", ShortNumber())
LOOK_S = 0.5
STREAM_S = 600.0
"""A browser opens the stream of changes again after so long."""
MOST_STREAMS = 64
ASKED = "Open the address that rlep console printed when it started: its token is new at every start."
MOST_CHOSEN = 24
"""Metrics that a page draws on request."""
_STATIC = {"view.css": "text/css", "view.js": "text/javascript"}


class Console:
    """The routes over some directories, which are searched again for each page."""

    def __init__(self, directories: Sequence[Path], pools: Sequence[PoolPlace] = ()) -> None:
        self._directories = tuple(directories)
        self._pools = PoolPlaces(pools, directories)
        self._streams = 0

    def routes(self) -> list[Route]:
        """All of them, and all are GET."""
        shown: list[tuple[str, Callable[[Request], str]]] = [
            ("/", self._overview),
            ("/compare", self._compare),
            ("/runs/{run}", self._run),
            ("/runs/{run}/steps/{step:number}", self._step),
            ("/runs/{run}/steps/{step:number}/groups/{group:number}", self._group),
            ("/runs/{run}/prompts/{prompt}", self._prompt),
            ("/runs/{run}/evaluations/{step:number}", self._evaluation),
            ("/runs/{run}/actors", self._actors),
            ("/runs/{run}/pool", self._pool_of),
            ("/studies", self._studies),
            ("/studies/{study}", self._study),
            ("/pools", self._pool_list),
            ("/pools/{number:number}/{pool}", self._pool),
            ("/pools/{number:number}/{pool}/prompts/{prompt}", self._pool_prompt),
        ]
        return [
            *(Route(path, partial(_page, show), methods=["GET"]) for path, show in shown),
            Route("/runs/{run}/live", self._live, methods=["GET"]),
            Route("/static/{name}", _static, methods=["GET"]),
        ]

    def _overview(self, request: Request) -> str:
        asked = request.query_params
        return overview(list(self._runs().values()), asked.get("q", ""), asked.get("state", ""))

    def _compare(self, request: Request) -> str:
        runs = self._runs()
        chosen = [runs[name] for name in request.query_params.getlist("run")[:6] if name in runs]
        over, metrics = request.query_params.get("over", "steps"), _metrics_in(request)
        names = [*dict.fromkeys(place.name for place in (*chosen, *newest([*runs.values()])))]
        return compare(chosen, names, over, metrics, look_of(request))

    def _run(self, request: Request) -> str:
        place = self._place(request)
        return run(place, run_query_of(request), mark_of(place))

    def _step(self, request: Request) -> str:
        return pages.step(self._place(request), request.path_params["step"], query_of(request))

    def _group(self, request: Request) -> str:
        asked = request.path_params
        return pages.group(self._place(request), asked["step"], asked["group"], query_of(request))

    def _prompt(self, request: Request) -> str:
        return prompt(self._place(request), request.path_params["prompt"], self._pools)

    def _evaluation(self, request: Request) -> str:
        asked = request.query_params.get("prompt")
        return pages.evaluation(self._place(request), request.path_params["step"], asked, query_of(request))

    def _actors(self, request: Request) -> str:
        place = self._place(request)
        return actors(place, mark_of(place))

    def _pool_of(self, request: Request) -> str:
        return pool_pages.pool_of(self._place(request), self._pools)

    def _studies(self, request: Request) -> str:
        return studies(list(find_studies(self._directories).values()))

    def _study(self, request: Request) -> str:
        found = find_studies(self._directories).get(request.path_params["study"])
        if found is None:
            raise HTTPException(404, "there is no such study")
        return study(found, list(self._runs().values()))

    def _pool_list(self, request: Request) -> str:
        return pool_pages.pools(self._pools)

    def _pool(self, request: Request) -> str:
        return pool_pages.named_pool(self._pools, request.path_params["number"], request.path_params["pool"])

    def _pool_prompt(self, request: Request) -> str:
        asked = request.path_params
        return pool_pages.named_prompt(self._pools, asked["number"], asked["pool"], asked["prompt"])

    async def _live(self, request: Request) -> Response:
        """Server-sent events without content: the page asks again for what it shows."""
        place = await asyncio.to_thread(self._place, request)
        if self._streams >= MOST_STREAMS:
            raise HTTPException(503, "too many open pages")
        seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        return StreamingResponse(self._changes(place, seen), media_type="text/event-stream")

    async def _changes(self, place: RunPlace, seen: str) -> AsyncIterator[str]:
        """An event for each change since the page was made: what changed before the stream began is not lost."""
        self._streams += 1
        try:
            yield "retry: 2000\n\n"
            for _ in range(int(STREAM_S / LOOK_S)):
                now = await asyncio.to_thread(mark_of, place)
                if now != seen:
                    seen = now
                    yield f"event: changed\nid: {now}\ndata: \n\n"
                await asyncio.sleep(LOOK_S)
        finally:
            self._streams -= 1

    def _runs(self) -> dict[str, RunPlace]:
        return find_runs(self._directories)

    def _place(self, request: Request) -> RunPlace:
        place = self._runs().get(request.path_params["run"])
        if place is None:
            raise HTTPException(404, "there is no such run")
        return place


def console_app(directories: Sequence[Path], token: str, pools: Sequence[PoolPlace] = ()) -> ASGIApp:
    """The console over run directories, or directories above some, and pools of any name at some places."""
    handlers = {HTTPException: _failed, RlepError: _failed}
    app = Starlette(routes=Console(directories, pools).routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Gate(app, token, lambda: rendered("failed.html", code=401, reason=ASKED))


def page_of(request: Request) -> int:
    """``?page=``, from 0; 0 for anything else."""
    return number_in(request.query_params.get("page", ""), otherwise=0)


def query_of(request: Request) -> pages.Query:
    """Page, filter, search and pair of the address; what is none of these is left out."""
    asked = request.query_params
    pair = [number_in(asked.get(name, ""), otherwise=-1) for name in ("a", "b")]
    return pages.Query(
        page_of(request),
        asked.get("show", "all"),
        asked.get("q", "")[:200],
        asked.get("status", "")[:40],
        (pair[0], pair[1]) if min(pair) >= 0 else None,
    )


def run_query_of(request: Request) -> RunQuery:
    """Page, order, metrics and range in the address of a run's page."""
    asked = request.query_params
    return RunQuery(
        page_of(request),
        asked.get("sort", "step"),
        asked.get("down", "1") != "0",
        _metrics_in(request),
        asked.get("events", "all"),
        "sort" in asked or "page" in asked,
        look_of(request),
    )


def look_of(request: Request) -> ChartLook:
    """Smoothing, scale and range of charts in an address."""
    asked = request.query_params
    smooth = real_in(asked.get("smooth", "")) or 0.0
    low, high = real_in(asked.get("low", "")), real_in(asked.get("high", ""))
    return ChartLook(min(max(smooth, 0.0), 0.999), asked.get("log") == "1", low, high)


def real_in(text: str) -> float | None:
    """A finite number; None for anything else."""
    try:
        value = float(text[:40])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _metrics_in(request: Request) -> tuple[str, ...]:
    return tuple(dict.fromkeys(request.query_params.getlist("metric")[:MOST_CHOSEN]))


def number_in(text: str, *, otherwise: int) -> int:
    """A number of at most nine digits."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 9 else otherwise


async def _page(show: Callable[[Request], str], request: Request) -> Response:
    return HTMLResponse(await asyncio.to_thread(show, request))


async def _static(request: Request) -> Response:
    kind = _STATIC.get(name := request.path_params["name"])
    if kind is None:
        raise HTTPException(404, "there is no such file")
    return Response(resources.files("rlep.view").joinpath("static", name).read_bytes(), media_type=kind)


async def _failed(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404
    reason = error.detail if isinstance(error, HTTPException) else str(error)
    return HTMLResponse(rendered("failed.html", code=code, reason=reason), code)
