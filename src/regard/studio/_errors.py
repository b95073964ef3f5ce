"""Errors as JSON messages for the page. Stack traces go only to the terminal."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

log = logging.getLogger("regard.studio")


class Refused(Exception):
    """A request is refused, with a reason for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error response: ``{"error": message}``."""
    # A path in a message may not be valid Unicode.
    return JSONResponse({"error": message.encode("utf-8", "replace").decode()}, status, headers=headers)


def install(app: FastAPI) -> None:
    """Turn every error of a request into a JSON response."""

    def refused(request: Request, error: Any) -> JSONResponse:
        return answer(error.status, error.message)

    def http(request: Request, error: Any) -> JSONResponse:
        known = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not allowed at this address",
        }
        message = known.get(error.status_code) if error.detail in ("Not Found", "Method Not Allowed") else None
        return answer(error.status_code, message or str(error.detail), error.headers)

    def invalid(request: Request, error: Any) -> JSONResponse:
        return answer(422, "; ".join(_say(problem) for problem in error.errors()))

    def ours(request: Request, error: Exception) -> JSONResponse:
        """An error in regard: the terminal shows the stack trace, the page a message."""
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(500, "an error occurred in regard; the terminal that runs the studio shows it")

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, ours)


def _say(problem: Mapping[str, Any]) -> str:
    place = [str(part) for part in problem.get("loc", ()) if part not in ("body", "query", "path")]
    said = str(problem.get("msg", "is not valid"))
    return f"{'.'.join(place)}: {said}" if place else said
