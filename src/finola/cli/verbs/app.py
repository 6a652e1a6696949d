"""finola app: serve the interactive demo."""

from __future__ import annotations

import argparse

from finola.errors import require

HELP = "serve an interactive demo in the browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to bind to (default: %(default)s, local access only)"
    )
    parser.add_argument("--port", type=int, help="port to bind to (default: the first free port from 7860)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name under which browsers may open the page; can be repeated",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> None:
    require("gradio", "fastapi", "uvicorn", "matplotlib")
    from finola.app.server import serve

    def ready(address: str) -> None:
        print(f"The app runs at {address}, press Ctrl+C to stop.", flush=True)
        if args.open:
            import webbrowser

            webbrowser.open(address)

    serve(args.host, args.port, ready, args.allow_host)
