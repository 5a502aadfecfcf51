"""Errors that an emulated engine answers with, in vLLM's form."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse, Response


class ApiError(Exception):
    """A request that is refused.

    Args:
        status: of the answer.
        message: what is wrong.
        kind: vLLM's name of the error.
        param: the member that is wrong, where one is.
    """

    def __init__(self, status: int, message: str, *, kind: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}.get(
            status, HTTPStatus(status).phrase
        )
        self.param = param

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """Return the answer."""
        return JSONResponse(self.document(), status_code=self.status, headers=headers)

    def document(self) -> dict[str, object]:
        """Return the answer's body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


class KvLoadError(Exception):
    """A KV cache cannot be had from the worker that is said to hold it.

    Args:
        message: why.
        is_mistake: whether the call is to blame, not a worker that lost the KV cache.
    """

    def __init__(self, message: str, *, is_mistake: bool = True) -> None:
        super().__init__(message)
        self.is_mistake = is_mistake
