"""The API. Everything the page shows comes from here; views' data as one binary body (see regard.views.Payload)."""

import threading
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Path, Query, Response

from regard._version import __version__
from regard.claims import examine, select
from regard.studio import _look, _runs
from regard.studio._errors import Refused
from regard.studio._files import HEADS, METRICS, Folder, Place, read_piece
from regard.studio._images import decode, fit, test_set, to_png
from regard.studio._models import (
    About,
    ClaimEvidence,
    Metrics,
    Problem,
    RunDetail,
    RunSummary,
    Sample,
    Samples,
    Sentence,
)
from regard.training import ImageTask, Run
from regard.views import Payload, show
from regard.views.claim_ledger import evidence_of

PAYLOAD = "application/octet-stream"
_MEANS = {
    400: "What was sent cannot be used.",
    403: "It may not be read.",
    404: "There is no such thing here.",
    409: "The run has nothing of this kind (yet).",
    413: "Too large.",
    422: "What was asked for is not of the right form, or cannot be read.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": means} for status, means in _MEANS.items()
}
BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {PAYLOAD: {"schema": {"type": "string", "format": "binary"}}}, "description": "A view's payload."}
}
PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}, "description": "An image."}
}
RunId = Annotated[str, Path(max_length=300, description="as the list of runs has it")]
Step = Annotated[int | None, Query(ge=0, le=2**53, description="of a checkpoint; the last by default")]
Source = Literal["test", "shipped"]
Index = Annotated[int, Path(ge=0, le=10**9)]


MOST_KEPT = 8


class Binary(Response):
    media_type = PAYLOAD


class Picture(Response):
    media_type = "image/png"


def routes(folder: Folder) -> APIRouter:
    """All of them, for the runs of a folder."""
    router = APIRouter(prefix="/api", responses=PROBLEMS)
    networks = _runs.Networks()
    # Capturing swaps a module's functions for the time of a pass: one pass at a time.
    working = threading.Lock()
    looked: dict[Any, bytes] = {}  # the last few images, to go back and forth between

    def opened(id: str) -> tuple[Place, Run]:
        place = folder.place(id)
        return place, place.open()

    @router.get("/about", summary="What this server shows")
    def about() -> About:
        return About(version=__version__, folder=folder.root.name)

    @router.get("/runs", summary="All runs, the latest first")
    def runs() -> list[RunSummary]:
        found = [_runs.summarize(place) for place in folder.places().values()]
        return sorted(found, key=lambda run: (run.example, run.problem is not None, -run.modified))

    @router.get("/runs/{id}", summary="One run")
    def run(id: RunId) -> RunDetail:
        return _runs.detail(folder.place(id))

    @router.get("/runs/{id}/metrics", summary="The numbers of a run, from a place in them on")
    def metrics(id: RunId, offset: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Metrics:
        place, opened_run = opened(id)
        piece, heads = read_piece(place.file(METRICS), offset), place.file(HEADS)
        steps = opened_run.checkpoints.steps()
        return Metrics(
            lines=piece.lines,
            offset=piece.offset,
            more=piece.more,
            anew=piece.anew,
            state=_runs.state_of(place),
            heads=heads.stat().st_size if heads.exists() else 0,
            checkpoint=steps[-1] if steps else None,
        )

    @router.get("/runs/{id}/heads", summary="Where its heads looked, so far", responses=BINARY, response_class=Binary)
    def heads(id: RunId) -> Response:
        place, opened_run = opened(id)
        if "heads" not in _runs.views_of(place, opened_run):
            raise Refused(409, f"{place.title} has no Gaussian heads, whose course could be shown")
        return Binary(_view(opened_run, place).body)

    @router.get("/runs/{id}/images", summary="Images to choose from")
    def images(
        id: RunId,
        source: Source,
        start: Annotated[int, Query(ge=0, le=10**9)] = 0,
        count: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> Samples:
        place, opened_run = opened(id)
        total = _runs.sample_counts(opened_run).get(source, 0)
        chosen = range(start, min(total, start + count))
        labels = _labels(opened_run, source, chosen)
        return Samples(
            total=total,
            samples=[
                Sample(source=source, index=at, label=label, address=f"/api/runs/{place.id}/images/{source}/{at}")
                for at, label in zip(chosen, labels, strict=True)
            ],
        )

    @router.get("/runs/{id}/images/{source}/{index}", summary="One of them", responses=PICTURE, response_class=Picture)
    def image(id: RunId, source: Source, index: Index) -> Response:
        _, opened_run = opened(id)
        return Picture(_sample(opened_run, source, index), headers={"cache-control": "private, max-age=3600"})

    @router.get(
        "/runs/{id}/images/{source}/{index}/attention",
        summary="Where the network looks in one of them",
        responses=BINARY,
        response_class=Binary,
    )
    def image_attention(id: RunId, source: Source, index: Index, step: Step = None) -> Response:
        place, opened_run = opened(id)
        last = max(opened_run.checkpoints.steps(), default=None)
        key = (str(place.folder), source, index, step, last)
        with working:  # whoever asks for the same meanwhile waits for it
            body = looked.get(key)
            if body is None:
                content = _sample(opened_run, source, index)
                label = _labels(opened_run, source, range(index, index + 1))[0]
                body = look(place, opened_run, content, step, label).body
                looked[key] = body
            if len(looked) > MOST_KEPT:
                del looked[next(iter(looked))]
        return Binary(body)

    @router.post(
        "/runs/{id}/attention",
        summary="Where the network looks in an image of yours",
        responses=BINARY,
        response_class=Binary,
    )
    def upload_attention(id: RunId, image: Annotated[bytes, File()], step: Step = None) -> Response:
        place, opened_run = opened(id)
        with working:
            return Binary(look(place, opened_run, image, step, None).body)

    def look(place: Place, opened_run: Run, content: bytes, step: int | None, label: str | None) -> Payload:
        task = opened_run.recipe.task
        if "image" not in _runs.views_of(place, opened_run) or not isinstance(task, ImageTask):
            raise Refused(409, f"{place.title} has no network that attends to images")
        taken, shown = fit(decode(content), task.shape)
        network, used = networks.get(place, opened_run, step)
        told = {"run": place.title, "step": used, "label": label}
        return _look.look_at_image(opened_run, network, taken, shown, told)

    @router.post("/runs/{id}/sentence", summary="What it makes of a sentence", responses=BINARY, response_class=Binary)
    def sentence(id: RunId, typed: Sentence, step: Step = None) -> Response:
        place, opened_run = opened(id)
        if "tokens" not in _runs.views_of(place, opened_run):
            raise Refused(409, f"{place.title} has no network that attends to sentences")
        with working:
            network, used = networks.get(place, opened_run, step)
            payload = _look.read_sentence(opened_run, network, typed, {"run": place.title, "step": used})
        return Binary(payload.body)

    @router.get("/pages/{name}", summary="A view that needs no run", responses=BINARY, response_class=Binary)
    def page(name: Literal["mechanism", "convolution", "claims"]) -> Response:
        return Binary(_page(name))

    @router.post("/claims/{id}/evidence", summary="Examine a claim now")
    def evidence(id: Annotated[str, Path(max_length=100)]) -> ClaimEvidence:
        try:
            claim = next(claim for claim in select(id) if claim.id == id)
        except (ValueError, StopIteration):
            raise Refused(404, f"no claim is called {id!r}") from None
        if claim.slow:
            raise Refused(409, f"{id} trains something, which takes minutes: regard verify --slow --id {id}")
        with working:
            row = examine(claim)
            told = evidence_of(row)
        return ClaimEvidence(id=id, verdict=told["verdict"], found=told["found"])

    return router


@cache
def _page(name: str) -> bytes:
    # Claims come as they are on record; the page asks for the evidence of each that is opened.
    return (show(name, run=False) if name == "claims" else show(name)).payload.body


def _view(run: Run, place: Place) -> Payload:
    try:
        return show(run).payload
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(422, f"{HEADS} of {place.title} cannot be read: {error}") from error


def _labels(run: Run, source: Source, which: range) -> list[str | None]:
    if source == "shipped":
        return [path.stem.partition("-")[0] for path in _runs.shipped_images(run)[which.start : which.stop]]
    task = run.recipe.task
    images = test_set(task.data) if isinstance(task, ImageTask) else None
    return [] if images is None else [images.classes[at] for at in images.labels[which.start : which.stop].tolist()]


def _sample(run: Run, source: Source, index: int) -> bytes:
    """An image to choose, as a PNG."""
    task = run.recipe.task
    total = _runs.sample_counts(run).get(source, 0)
    if index >= total or not isinstance(task, ImageTask):
        raise Refused(404, f"there is no image {index} of the {source} images; there are {total}")
    if source == "shipped":
        return _runs.shipped_images(run)[index].read_bytes()
    images = test_set(task.data)
    if images is None:
        raise Refused(404, f"the test set of {task.data} is gone")
    return to_png(images.images[index])
