"""The files that pages need: known by name when the process starts, so no path of a request leads anywhere else."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from penstock.console.errors import Problem

FOLDER = Path(__file__).parent / "static"
SERVED = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SCRIPTS = ("vendor/htmx.min.js", "vendor/htmx-sse.min.js", "vendor/uplot.min.js", "vendor/uplot.min.css")
CACHED = {"cache-control": "public, max-age=31536000, immutable"}
NOT_CACHED = {"cache-control": "no-cache"}


def _known() -> dict[str, str]:
    """Of each file the start of its hash, which its address has: what a browser keeps is never out of date."""
    files = (path for path in FOLDER.rglob("*") if path.suffix in SERVED)
    return {str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files}


KNOWN = _known()
HAS_SCRIPTS = all(name in KNOWN for name in SCRIPTS)


def address(name: str) -> str:
    """Where a page finds a file."""
    return f"/static/{name}?{KNOWN[name]}"


async def static_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in KNOWN:
        raise Problem(404, "no-such-file", "the console has no file of this name", "open a page of the console")
    path = FOLDER / name
    headers = CACHED if request.url.query == KNOWN[name] else NOT_CACHED
    return FileResponse(path, media_type=SERVED[path.suffix], headers=headers)
