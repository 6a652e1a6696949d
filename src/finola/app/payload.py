"""Validation of browser requests to event handlers: only values of the expected type and uploaded files.

Gradio resolves file names and URLs inside any input, of any component, before a handler is called. Here every input
is rebuilt from values that were checked, so that Gradio never sees a path or URL that this server did not create.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from finola.app.uploads import Uploads
from finola.errors import InputError

if TYPE_CHECKING:
    import gradio as gr

MAX_BODY = 100_000  # bytes of a request to a handler
MAX_NESTING = 100  # maximum number of brackets, because the parser is recursive
SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")
CHOICE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names and numbers of selectable elements


def checked_body(body: bytes, page: gr.Blocks, uploads: Uploads) -> tuple[bytes, str]:
    """Rebuild the request body from validated values and return it with its session. Raises InputError if invalid."""
    try:
        if body.count(b"[") + body.count(b"{") > MAX_NESTING:
            raise ValueError("too deeply nested")
        sent = json.loads(body, parse_constant=_no_constant)
    except ValueError:
        raise InputError("The request is not valid JSON.") from None
    if not isinstance(sent, dict):
        raise InputError("The request is not a JSON object.")
    number, session, data = sent.get("fn_index"), sent.get("session_hash"), sent.get("data")
    if not _is_integer(number) or number not in page.fns:
        raise InputError(f"Unknown event handler {str(number)[:20]!r}.")
    if not isinstance(session, str) or not SESSION.fullmatch(session):
        raise InputError("The session's name is invalid.")
    inputs = page.fns[number].inputs
    if not isinstance(data, list) or len(data) != len(inputs):
        raise InputError(f"The event handler {number} has {len(inputs)} inputs.")
    trigger = sent.get("trigger_id")
    rebuilt = {
        "fn_index": number,
        "session_hash": session,
        "data": [checked_value(component, value, uploads) for component, value in zip(inputs, data, strict=True)],
        "event_data": _checked_event(sent.get("event_data")),
        "trigger_id": trigger if _is_integer(trigger) else None,
    }
    return json.dumps(rebuilt).encode(), session


def checked_value(component: Any, value: object, uploads: Uploads) -> object:
    """Validate one input of a handler by the type of its component. Raises InputError for unknown types."""
    import gradio as gr

    match component:
        case gr.State():
            return None  # stored on the server: values from the browser are ignored
        case gr.Dropdown():
            if isinstance(value, str) and value in [choice for _, choice in component.choices]:
                return value
        case gr.Slider():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return value
        case gr.File():
            if value is None:
                return None
            if isinstance(value, dict):
                path = uploads.check(value.get("path"))
                return {"path": str(path), "meta": {"_type": "gradio.FileData"}}
    raise InputError(f"The value for {component.label or type(component).__name__!r} is invalid.")


def _checked_event(sent: object) -> dict[str, str] | None:
    """Validated choice of a click event, or None."""
    if not isinstance(sent, dict):
        return None
    choice = sent.get("choice")
    return {"choice": choice} if isinstance(choice, str) and CHOICE.fullmatch(choice) else None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")
