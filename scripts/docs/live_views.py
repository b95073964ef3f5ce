"""Views that live inside pages of the documentation: each is one file of the site, shown in a frame.

A line ``<!-- view: NAME -->`` in a page becomes the frame of that view.
"""

import re
from collections.abc import Callable
from functools import cache

import torch

import regard

MARKER = re.compile(r"^<!-- view: ([\w-]+) -->$", re.MULTILINE)


def image_view() -> regard.views.Show:
    """Where the heads of the network that comes with the package look on one of its photos."""
    from regard.studio import EXAMPLE

    run = regard.load_run(EXAMPLE)
    photo = regard.data.decode_image((EXAMPLE / "images" / "horse-13.png").read_bytes())
    network = run.network().eval()
    with torch.no_grad(), regard.capture(network) as maps:
        network(run.recipe.task.read_image(photo).batch[0])
    return regard.show(maps, image=photo)


def heads_view() -> regard.views.Show:
    from regard.studio import EXAMPLE

    return regard.show(EXAMPLE)


# name: (what makes it, its title, the height of its frame in pixels)
VIEWS: dict[str, tuple[Callable[[], regard.views.Show], str, int]] = {
    "image": (image_view, "Where each head looks on a photo", 980),
    "heads": (heads_view, "Heads over training", 1080),
    "mechanism": (lambda: regard.show("mechanism"), "Queries, keys and values to edit", 1050),
    "convolution": (lambda: regard.show("convolution"), "Attention becomes convolution", 1000),
}


def frame(name: str, up: str) -> str:
    """The frame of a view on a page that is so far below the site's root."""
    if name not in VIEWS:
        raise ValueError(f"no view is called {name!r}; there are {', '.join(VIEWS)}")
    _, title, height = VIEWS[name]
    return (
        f'<iframe class="live" src="{up}views/{name}.html" title="{title}" loading="lazy" height="{height}"></iframe>\n\n'
        f"[Open this view alone]({up}views/{name}.html)"
    )


@cache
def page(name: str) -> str:
    """The view as one HTML document."""
    return VIEWS[name][0]().html()


def inserted(markdown: str, up: str) -> str:
    return MARKER.sub(lambda found: frame(found[1], up), markdown)
