"""The application: routes, the page, errors and the OpenAPI description, inside the border."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from vitreous import __version__
from vitreous.serve.http.border import Border
from vitreous.serve.http.page import POLICY, page_files
from vitreous.serve.http.routes import router
from vitreous.serve.http.schemas import ProblemDocument
from vitreous.serve.http.service import Service
from vitreous.serve.problems import Problem, problem_response

__all__ = ["create_app"]

_DESCRIPTION = """\
Classifies images with a Vision Transformer. Images are sent as they are, as a form, or as JSON with base64; they are
not stored, and URLs are never fetched. Errors are `application/problem+json` (RFC 9457). `429` and `503` have a
`Retry-After`."""


def create_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""
    app = FastAPI(title="Vitreous", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.include_router(router)
    files = page_files()
    for path, (kind, content) in files.items():
        _add_file(app, path, kind, content)
    _answer_errors(app)
    app.openapi = lambda: _openapi(app, service.keys is not None)  # type: ignore[method-assign]
    described = list(app.openapi()["paths"])
    public = {"/healthz", "/readyz", "/openapi.json", *files}
    return Border(app, service, public, POLICY, {*described, *public})


def _add_file(app: FastAPI, path: str, kind: str, content: bytes) -> None:
    async def file() -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    app.add_api_route(path, file, include_in_schema=False)


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Problem)
    async def refused(request: Request, problem: Problem) -> Response:
        request.state.passage.reason = problem.reason
        return problem.response()

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        detail = {404: "there is nothing at this path: /openapi.json lists what there is"}
        detail[405] = f"method {request.method} is not for this path"
        return problem_response(error.status_code, detail.get(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return problem_response(499, "the client has gone")

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        number = request.state.passage.id
        return problem_response(500, f"the request failed, its id is {number}: the service's log has the reason")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = [f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()[:5]]
        return problem_response(422, "; ".join(wrong))


def _openapi(app: FastAPI, has_keys: bool) -> dict[str, Any]:
    """Return the description of the interface, made once."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
        components = described.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
        if has_keys:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            described["security"] = [{"key": []}]
        app.openapi_schema = described
    return app.openapi_schema
