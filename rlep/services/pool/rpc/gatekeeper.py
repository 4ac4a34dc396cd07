"""Admission of callers, decided before anything that a caller sends is read.

gRPC's server reads the request of a unary call in one of its threads, for as long as the caller takes to send it, and
parses it before its handler runs. Here every call of the pool is served as one whose request is a stream: token and
deadline are checked first, then the request is read; for a client that does not send or does not read see ``open_calls.py``.
Health and reflection need no token: each has threads of its own, and a caller has ``FIRST_MESSAGE_S`` to send its request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from rlep.services.pool.rpc.access import ANYBODY, Caller, Tokens
from rlep.services.pool.rpc.open_calls import CALLS_A_TOKEN, OpenCall, OpenCalls
from rlep.services.pool.rpc.wire import LONGEST_CALL, MESSAGE_BYTES, SERVICE, SMALL_BYTES

Context = Any
"""``grpc.ServicerContext``; grpc has no types."""
Handler = Any
"""``grpc.RpcMethodHandler``."""

FIRST_MESSAGE_S, OPEN_STREAM_S = 2.0, 20.0
"""Seconds that a call of an open service may take to send its request, or where that is a stream, for all."""
_LARGE = (f"/{SERVICE}/Sample", f"/{SERVICE}/Fetch")
"""Their requests name many prompts or records; the requests of ``Add`` are frames, which it counts itself."""
_LONGEST_MESSAGE = 2000
_OPEN_THREADS = {health.SERVICE_NAME: 16, reflection.SERVICE_NAME: 4}


class Refused(Exception):
    """A refused call and its status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Gatekeeper(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Checks each call of a server."""

    def __init__(self, tokens: Tokens | None) -> None:
        """``tokens`` None lets everybody do everything."""
        self._tokens, self._calls = tokens, OpenCalls()
        self._open = {name: ThreadPoolExecutor(most, f"pool-{name}") for name, most in _OPEN_THREADS.items()}

    def close(self) -> None:
        """End the threads; all calls have ended."""
        self._calls.close()
        for threads in self._open.values():
            threads.shutdown()

    def caller(self, context: Context) -> Caller:
        """The caller. Raises ``Refused`` where its token is none of the server's."""
        if self._tokens is None:
            return Caller(_host(context), (ANYBODY,))
        given = dict(context.invocation_metadata()).get("authorization", "")
        found = self._tokens.caller(given.removeprefix("Bearer ")) if given.startswith("Bearer ") else None
        if found is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "no token that this server knows")
        return found

    def intercept_service(self, continuation: Callable[[Any], Handler | None], details: Any) -> Handler | None:
        """The method's handler, which now reads nothing before it is admitted."""
        handler = continuation(details)
        if handler is None:
            return None
        service = details.method.rpartition("/")[0].removeprefix("/")
        if service == SERVICE:
            verb = details.method.rpartition("/")[2]
            most = MESSAGE_BYTES if details.method in _LARGE else SMALL_BYTES
            return _streamed(handler, lambda context: self._admit(context, verb), most)
        return _open(handler, self._open[service])

    def _admit(self, context: Context, verb: str) -> OpenCall:
        """End the call unless its token is known, has few other calls, and its deadline is short enough."""
        try:
            caller = self.caller(context)
        except Refused as refusal:
            end(context, refusal.code, refusal, ())
        left = context.time_remaining()
        if left is None or left > LONGEST_CALL:
            message = f"a call needs a deadline of at most {LONGEST_CALL:g} seconds"
            end(context, grpc.StatusCode.INVALID_ARGUMENT, message, ())
        # Without tokens everybody is one caller, who may do everything.
        call = self._calls.open(context, caller.name, verb, CALLS_A_TOKEN if self._tokens else None)
        if call is None:
            message = (
                f"{caller.name} has {CALLS_A_TOKEN} calls open at this server, the most: ask again, or use more tokens"
            )
            end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, message, ())
        return call


def end(
    context: Context, code: grpc.StatusCode, error: Exception | str, trailing: tuple[tuple[str, str], ...]
) -> NoReturn:
    """End the call with a status and what its client is told."""
    context.set_trailing_metadata(trailing)
    context.abort(code, str(error)[:_LONGEST_MESSAGE])
    raise AssertionError("abort returned")


def _host(context: Context) -> str:
    return str(context.peer().rpartition(":")[0])


def _hurry(context: Context, seconds: float) -> Timer:
    """Cancel the call in a while, unless the timer is stopped or the call ends before."""
    timer = Timer(seconds, context.cancel)
    timer.daemon = True
    timer.start()
    context.add_callback(timer.cancel)
    return timer


def _streamed(handler: Handler, admit: Callable[[Context], OpenCall], most: int) -> Handler:
    """The handler with a stream as its request, which is read after ``admit``; a unary request has at most ``most`` bytes."""
    behavior = _behavior(handler)

    def asked(requests: Iterator[Any], context: Context) -> tuple[OpenCall, Any]:
        call = admit(context)
        if handler.request_streaming:
            return call, behavior(_frames(requests, call), context)
        with call.waiting():
            request = _only(requests, context, handler, most)
        return call, behavior(request, context)

    def replied(requests: Iterator[Any], context: Context) -> Any:
        call, reply = asked(requests, context)
        call.wait(reply.ByteSize())  # until the call has ended
        return reply

    def streamed(requests: Iterator[Any], context: Context) -> Iterator[Any]:
        call, frames = asked(requests, context)
        for frame in frames:
            with call.waiting(frame.ByteSize()):
                yield frame
        call.wait()

    return _like(handler, streamed if handler.response_streaming else replied)


def _frames(requests: Iterator[Any], call: OpenCall) -> Iterator[Any]:
    """The messages of a stream, for each of which the call waits."""
    while True:
        with call.waiting():
            frame = next(requests, None)
        if frame is None:
            return
        call.arrived(frame.ByteSize())
        yield frame


def _open(handler: Handler, threads: ThreadPoolExecutor) -> Handler:
    """The handler of a service that everybody may call, in threads of its own and with little time."""
    behavior = _behavior(handler)

    def hurried(requests: Iterator[Any], context: Context, *callback: Any) -> Any:
        if handler.request_streaming:
            _hurry(context, OPEN_STREAM_S)
            return behavior(requests, context, *callback)
        timer = _hurry(context, FIRST_MESSAGE_S)
        request = _only(requests, context, handler, SMALL_BYTES)
        timer.cancel()
        return behavior(request, context, *callback)

    # grpc's way of giving a handler other threads than the server's; both names are experimental there.
    hurried.experimental_thread_pool = threads  # type: ignore[attr-defined]
    hurried.experimental_non_blocking = getattr(behavior, "experimental_non_blocking", False)  # type: ignore[attr-defined]
    return _like(handler, hurried)


def _behavior(handler: Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)  # type: ignore[no-any-return]


def _like(handler: Handler, behavior: Callable[..., Any]) -> Handler:
    """A handler of the same replies whose request is a stream: of bytes, where it was unary."""
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(
        behavior, handler.request_deserializer if handler.request_streaming else None, handler.response_serializer
    )


def _only(requests: Iterator[bytes], context: Context, handler: Handler, most: int) -> Any:
    """The request of a unary call."""
    raw = next(requests, None)
    if raw is None:
        end(context, grpc.StatusCode.INVALID_ARGUMENT, "the call has no request", ())
    if len(raw) > most:
        message = f"a request of {len(raw)} bytes: at most {most} in this call"
        end(context, grpc.StatusCode.INVALID_ARGUMENT, message, ())
    try:
        return handler.request_deserializer(raw)
    except DecodeError:
        end(context, grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this call", ())
