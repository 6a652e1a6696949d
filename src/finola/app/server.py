"""Web server of the page, for browsers on this machine. It makes no outgoing connections."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from finola.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

HOST = "127.0.0.1"
FIRST_PORT, PORTS = 7860, 100
FOLDER = "finola-app-"  # prefix of temporary folders
STATES = 4  # sessions whose photos are stored; the least recently used one is dropped first
CLOSING = 2  # seconds for open connections to finish
GRACE = 4.0  # seconds until the process is terminated, even during a computation
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
MONOSPACED = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"]


def serve(port: int | None = None, ready: Callable[[str], None] = print) -> None:
    """Serve the page on the loopback interface until SIGINT or SIGTERM; the default port is the first free from 7860.

    `ready` is called with the address of the page once the first model is loaded.
    """
    with listen(port) as sock:
        import uvicorn

        app = create_app()
        _warm_up()

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                end_soon(sig)
                super().handle_exit(sig, frame)

        config = uvicorn.Config(app, log_level="warning", proxy_headers=False, timeout_graceful_shutdown=CLOSING)
        ready(f"http://{HOST}:{sock.getsockname()[1]}")
        Server(config).run(sockets=[sock])


def end_soon(sig: int) -> None:
    """Terminate the process after `GRACE` seconds, because Python waits for threads at exit and a job can be long."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + sig)

    timer = threading.Timer(GRACE, end)
    timer.daemon = True
    timer.start()
    if hasattr(signal, "setitimer"):  # not on Windows; SIGALRM ends the process also while a library holds the GIL
        signal.setitimer(signal.ITIMER_REAL, GRACE + 0.5)


def listen(port: int | None) -> socket.socket:
    """Open a listening socket on the port of the loopback interface, or on the first free one."""
    for number in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if os.name == "posix":  # on Windows the option allows two servers on one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, number))
            sock.listen()  # reserves the port
            return sock
        except (OSError, OverflowError) as error:
            sock.close()
            reason = getattr(error, "strerror", None) or str(error)
    where = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise InputError(f"Cannot listen on {where} of {HOST} ({reason}). Choose another with --port.")


def create_app() -> FastAPI:
    """Create the web application: the page behind checks of the host name (`TrustedHostMiddleware`) and `Guard`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):  # by a server that was killed in this function
        if not hasattr(os, "getuid") or left.lstat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=FOLDER)
    os.environ["GRADIO_TEMP_DIR"] = folder  # the only folder that Gradio reads and writes; removed below
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from finola.app.guard import PROGRESS, UPLOAD, Guard, Uploads, upload_progress
    from finola.app.page import build
    from finola.app.photos import MAX_BYTES

    uploads = Uploads()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    here, page = Path(__file__).parent, build(uploads)
    app.add_route(UPLOAD, uploads.receive, ["POST"])  # in place of Gradio's own
    app.add_route(PROGRESS, upload_progress)
    app.add_middleware(Guard, page=page)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST], www_redirect=False)
    page.state_session_capacity = STATES
    page.has_launched = True  # not set for mounted pages, but Gradio checks paths only if it is set
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
    shutil.rmtree(folder)
    return app


def _warm_up() -> None:
    """Load and run the first model, so that the page opens with images; compute its statistics in a thread."""
    from PIL import Image

    from finola.app.handlers import first_comparison
    from finola.app.models import names, statistics

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # reported on the page instead
    first = names()[0]
    first_comparison(first, 50, 0)
    threading.Thread(target=statistics, args=(first,), daemon=True).start()
