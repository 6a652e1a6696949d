"""Web server of the page. By default it accepts local connections only, and it makes no outgoing connections."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from finola.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from finola.app.visitors import Visitors

FIRST_PORT, PORTS = 7860, 100
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SESSIONS = 32  # maximum number of stored sessions; the least recently used one is dropped first
CLOSING = 2  # seconds for open connections to finish
GRACE = 4.0  # seconds until the process is terminated, even during a computation
FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
MONOSPACED = ["ui-monospace", "SF Mono", "Menlo", "Consolas", "monospace"]


def serve(
    host: str = "127.0.0.1",
    port: int | None = None,
    ready: Callable[[str], None] = print,
    allowed_hosts: Iterable[str] = (),
) -> None:
    """Serve the page until SIGINT or SIGTERM; `ready` is called with its address once the first model is loaded.

    The default port is the first free one from 7860. `allowed_hosts` are additional host names under which browsers
    may open the page.
    """
    sock = listen(host, port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the temporary folder is removed on SIGTERM, too
    with sock, tempfile.TemporaryDirectory(prefix="finola-app-") as folder:
        import uvicorn

        from finola.app.visitors import Visitors

        visitors = Visitors()
        app = create_app(folder, (host, *allowed_hosts), visitors)
        _warm_up()

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                end_soon(sig, folder, visitors)
                super().handle_exit(sig, frame)

        shown = f"[{host}]" if ":" in host else host
        server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=CLOSING))
        ready(f"http://{shown}:{sock.getsockname()[1]}")
        server.run(sockets=[sock])


def end_soon(sig: int, folder: str, visitors: Visitors) -> None:
    """Cancel all jobs, and terminate the process after `GRACE` seconds.

    Python waits for running threads at exit, and a model step can take long.
    """
    visitors.stop()

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130 if sig == signal.SIGINT else 0)

    timer = threading.Timer(GRACE, end)
    timer.daemon = True
    timer.start()


def listen(host: str, port: int | None) -> socket.socket:
    """Open a listening socket on the port, or on the first free one."""
    candidates = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in candidates:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, number))
            sock.listen()  # reserves the port
            return sock
        except (OSError, OverflowError) as error:
            sock.close()
            reason = getattr(error, "strerror", None) or str(error)
    where = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise InputError(f"Cannot listen at {host} on {where} ({reason}). Choose others with --host and --port.")


def create_app(folder: str | Path, hosts: Iterable[str] = (), visitors: Visitors | None = None) -> FastAPI:
    """Create the web application. Uploads are stored in `folder` until read; `hosts` are allowed host names."""
    folder = Path(folder).resolve()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # the only folder that Gradio writes uploads to and reads them from
    import gradio as gr
    from fastapi import FastAPI

    from finola.app.guard import Guard
    from finola.app.page import build
    from finola.app.uploads import MAX_BYTES, Uploads
    from finola.app.visitors import Visitors

    uploads, visitors = Uploads(folder), visitors or Visitors()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    here, page = Path(__file__).parent, build(uploads, visitors)
    app.add_middleware(Guard, page=page, uploads=uploads, visitors=visitors, hosts=(*LOOPBACK, *hosts))
    page.GRADIO_CACHE = str(folder)
    page.state_session_capacity = SESSIONS
    page.has_launched = True  # not set for mounted pages, but Gradio checks paths only if it is set
    uploads.watch()
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
    """Load and run the first model, so that the first visitor does not wait; compute its statistics in a thread."""
    from PIL import Image

    from finola.app.handlers import first_comparison
    from finola.app.models import names, statistics

    warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # reported to the visitor instead
    first = names()[0]
    first_comparison(first, 50, 0)
    threading.Thread(target=statistics, args=(first,), daemon=True).start()
