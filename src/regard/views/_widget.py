"""The notebook widget: the front end and a payload."""

from typing import Any

from regard.views._payload import Payload
from regard.views.page import bundle


def widget(payload: Payload) -> Any:
    """An anywidget with the traits ``payload`` (the header), ``buffer`` and ``selection`` (the user's selection)."""
    try:
        import anywidget
        import traitlets
    except ImportError as missing:
        raise ImportError("a widget needs anywidget: pip install 'regard[notebook]'") from missing

    class View(anywidget.AnyWidget):
        _esm = bundle()
        buffer = traitlets.Bytes().tag(sync=True)
        payload = traitlets.Unicode().tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)

    return View(payload=payload.header, buffer=payload.buffer)
