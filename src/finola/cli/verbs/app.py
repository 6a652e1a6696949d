"""finola app: serve the interactive demo."""

from __future__ import annotations

import argparse

from finola.errors import require

HELP = "serve an interactive demo in the browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="port of this machine (default: the first free one from 7860)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> None:
    require("gradio", "fastapi", "uvicorn", "matplotlib")
    from finola.app.server import serve

    def ready(address: str) -> None:
        print(f"The app runs at {address}, press Ctrl+C to stop.", flush=True)
        if args.open:
            import webbrowser

            webbrowser.open(address)

    serve(args.port, ready)
