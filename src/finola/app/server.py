"""Serving the page: to this machine alone unless told otherwise, with nothing fetched from anywhere else."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

FIRST_PORT, PORTS = 7860, 100
SESSIONS = 16  # visitors whose photos are kept at once; the one least lately seen is let go first
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
MONOSPACED = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"]
# Whatever a library would like to fetch, the browser asks this host alone.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
)


def serve(host: str = "127.0.0.1", port: int | None = None, ready: Callable[[str], None] = print) -> None:
    """Serve the page until interrupted; `ready` is told its address once the first model answers.

    Without a port it takes the first free one from 7860 on.
    """
    sock = listen(host, port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the folder below is removed then, too
    with sock, tempfile.TemporaryDirectory(prefix="finola-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # uploads, until they are read
        import uvicorn

        app = create_app(folder)
        _warm_up()
        shown = f"[{host}]" if ":" in host else host
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        ready(f"http://{shown}:{sock.getsockname()[1]}")
        server.run(sockets=[sock])


def listen(host: str, port: int | None) -> socket.socket:
    """A socket on the port, or on the first free one."""
    wanted = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in wanted:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, number))
            sock.listen()  # from now on no other can have it
            return sock
        except (OSError, OverflowError) as error:
            sock.close()
            reason = getattr(error, "strerror", None) or str(error)
    where = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise ValueError(f"cannot listen at {host} on {where} ({reason}): choose others with --host and --port.")


def create_app(uploads: str | Path) -> FastAPI:
    """The page as a web application; uploads are kept below `uploads` until they are read."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr
    from fastapi import FastAPI, Request

    from finola.app.page import build
    from finola.app.photos import MAX_BYTES

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def stay_here(request: Request, call_next: Callable[..., Any]) -> Any:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    here, page = Path(__file__).parent, build()
    page.GRADIO_CACHE = str(uploads)
    page.state_session_capacity = SESSIONS
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=FONTS, font_mono=MONOSPACED)
    readable = {"body_text_color_subdued": "*neutral_500", "block_info_text_color": "*neutral_500"}
    theme.set(**readable, **{f"{name}_dark": "*neutral_400" for name in readable})
    gr.mount_gradio_app(
        app,
        page,
        path="",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=MAX_BYTES,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=theme,
        js=(here / "page.js").read_text(encoding="utf-8"),
        css_paths=here / "page.css",
    )
    return app


def _warm_up() -> None:
    """Load the first model and run it once, so that the first visitor does not wait; its statistics follow."""
    from PIL import Image

    from finola.app.models import names, statistics
    from finola.app.page import first_comparison

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # a visitor is told; the terminal need not be
    first = names()[0]
    first_comparison(first, 50)
    threading.Thread(target=statistics, args=(first,), daemon=True).start()
