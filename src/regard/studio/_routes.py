"""The HTTP API. It delivers everything that the page shows; the data of a view is one binary body
(see :class:`regard.views.Payload`)."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Path, Query, Request, Response

from regard._version import __version__
from regard.claims import examine, select
from regard.studio import _runs
from regard.studio._errors import Refused
from regard.studio._image_files import decode, fit, open_own, to_png, to_tensor
from regard.studio._models import (
    About,
    ClaimEvidence,
    ImageSample,
    ImageSamples,
    Metrics,
    ModelAbout,
    ModelText,
    Problem,
    RunDetail,
    RunSummary,
    Sentence,
)
from regard.studio._own_model import OwnModel
from regard.studio._recent import RecentAnswers
from regard.studio._run_folders import HEADS, METRICS, Folder, RunFolder, network_signature, read_piece, signature
from regard.studio._sample_view import sample_view
from regard.studio._summaries import Summaries
from regard.support.checksums import checksum
from regard.training import Run
from regard.views import Payload, show, story
from regard.views.claim_ledger import claim_evidence

PAYLOAD = "application/octet-stream"
_MEANINGS = {
    400: "The data sent cannot be used.",
    403: "Reading it is not allowed.",
    404: "Not found.",
    409: "The run has no such data (yet).",
    413: "Too large.",
    422: "The request has a wrong form, or the run cannot be read.",
    429: "Too many requests of this kind at once.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": means} for status, means in _MEANINGS.items()
}
RunId = Annotated[str, Path(max_length=300, description="as in the list of runs")]
Step = Annotated[int | None, Query(ge=0, le=2**53, description="step of a checkpoint; the last by default")]
Source = Literal["test", "shipped"]
Index = Annotated[int, Path(ge=0, le=10**9)]

MOST_KEPT, MOST_STORIES = 8, 2


class BinaryResponse(Response):
    media_type = PAYLOAD


class PngResponse(Response):
    media_type = "image/png"


def _binary(response: type[Response], description: str) -> dict[str, Any]:
    """The OpenAPI description of a route that returns bytes."""
    content = {str(response.media_type): {"schema": {"type": "string", "format": "binary"}}}
    return {"response_class": response, "responses": {200: {"content": content, "description": description}}}


VIEW, PICTURE = _binary(BinaryResponse, "The data of a view."), _binary(PngResponse, "An image.")


def routes(folder: Folder, model: OwnModel | None = None) -> APIRouter:
    """All routes, for the runs of a folder and the user's own model."""
    api = Api(folder, model)
    router = APIRouter(prefix="/api", responses=PROBLEMS)
    images = "/runs/{id}/images"
    router.get("/about", summary="What this server shows")(api.about)
    router.get("/runs", summary="All runs, the latest first", response_model=list[RunSummary])(api.runs)
    router.get("/runs/{id}", summary="One run")(api.run)
    router.get("/runs/{id}/metrics", summary="The metrics of a run, from an offset on")(api.metrics)
    router.get("/runs/{id}/heads", summary="Where its heads looked so far", **VIEW)(api.heads)
    router.get(images, summary="Images to choose from")(api.images)
    router.get(images + "/{source}/{index}", summary="One of these images", **PICTURE)(api.image)
    router.get(
        images + "/{source}/{index}/attention", summary="The network's attention on one of these images", **VIEW
    )(api.image_attention)
    router.post("/runs/{id}/attention", summary="The network's attention on an uploaded image", **VIEW)(
        api.upload_attention
    )
    router.post("/runs/{id}/sentence", summary="The network's answer to a sentence, with maps", **VIEW)(api.sentence)
    router.get("/model/maps", summary="Saved maps that the studio was opened with", **VIEW)(api.model_maps)
    router.post("/model/text", summary="The model's attention on a text", **VIEW)(api.model_text)
    router.post("/model/image", summary="The model's attention on an image", **VIEW)(api.model_image)
    router.get("/pages/{name}", summary="A view that needs no run", **VIEW)(api.page)
    router.post("/claims/{id}/evidence", summary="Check a claim now")(api.evidence)
    return router


class Api:
    """The functions behind the routes."""

    def __init__(self, folder: Folder, model: OwnModel | None = None) -> None:
        self.folder, self.model = folder, model
        self._networks = _runs.Networks()
        self._summaries = Summaries()
        # Capturing replaces functions during a forward pass, so only one pass runs at a time.
        self._working = threading.Lock()
        self._looked = RecentAnswers(MOST_KEPT, self._working)  # so that going back to an image is fast
        self._stories = RecentAnswers(MOST_STORIES, self._working)  # the start page
        self._heads = RecentAnswers(MOST_KEPT)

    def about(self) -> About:
        known = None
        if self.model is not None:
            known = ModelAbout(name=self.model.name, takes=self.model.takes, suggestion=self.model.suggestion)
        return About(version=__version__, folder=self.folder.root.name, model=known)

    def runs(self) -> Response:
        return Response(self._summaries.listed(self.folder.places()), media_type="application/json")

    def run(self, id: RunId) -> RunDetail:
        place = self.folder.place(id)
        with place.refusing():
            return _runs.detail(place, self.folder.example)

    def metrics(self, id: RunId, offset: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Metrics:
        with self._opened(id) as (place, run):
            piece, heads = read_piece(place.file(METRICS), offset), place.file(HEADS)
            return Metrics(
                **dataclasses.asdict(piece),
                state=_runs.state_of(place),
                heads=heads.stat().st_size if heads.exists() else 0,
                checkpoint=max(run.checkpoints.steps(), default=None),
            )

    def heads(self, id: RunId) -> Response:
        with self._opened(id) as (place, run):
            if "heads" not in _runs.views_of(place, run):
                raise Refused(409, f"{place.title} has no Gaussian heads to show")
            written = signature(place.folder)  # taken first: lines written meanwhile are read next time
            try:
                return BinaryResponse(self._heads.get(str(place.folder), lambda: show(run).payload.body, state=written))
            except (ValueError, KeyError, TypeError) as error:
                raise Refused(422, f"{HEADS} of {place.title} cannot be read: {error}") from error

    def images(
        self,
        id: RunId,
        source: Source,
        start: Annotated[int, Query(ge=0, le=10**9)] = 0,
        count: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> ImageSamples:
        with self._opened(id) as (place, run):
            total = _runs.sample_counts(run, self.folder.example).get(source, 0)
            samples = [
                ImageSample(
                    source=source,
                    index=at,
                    label=self._label(run, source, at),
                    address=f"/api/runs/{place.id}/images/{source}/{at}",
                )
                for at in range(start, min(total, start + count))
            ]
            return ImageSamples(total=total, samples=samples)

    def image(self, id: RunId, source: Source, index: Index, request: Request) -> Response:
        with self._opened(id) as (_, run):
            content = self._content(run, source, index)
        # A browser asks each time: under the same address, another folder or a new run may have another image.
        headers = {"etag": f'"{checksum(content, size=12)}"', "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return PngResponse(content, headers=headers)

    def image_attention(self, id: RunId, source: Source, index: Index, step: Step = None) -> Response:
        with self._opened(id) as (place, run):
            key, written = (
                (str(place.folder), source, index, step),
                network_signature(place.folder, run.checkpoints.steps()),
            )

            def look() -> bytes:
                content, label = self._content(run, source, index), self._label(run, source, index)
                known = label if source == "test" or _runs.knows(run, label) else None
                return self._look(place, run, open_own(content), step, known).body

            return BinaryResponse(self._looked.get(key, look, state=written))

    def upload_attention(self, id: RunId, image: Annotated[bytes, File()], step: Step = None) -> Response:
        with self._opened(id) as (place, run):
            self._check_images(place, run)
            decoded = decode(image)  # before the lock: a slow image blocks no other request
            with self._working:
                return BinaryResponse(self._look(place, run, decoded, step, None).body)

    def sentence(self, id: RunId, typed: Sentence, step: Step = None) -> Response:
        with self._opened(id) as (place, run):
            if "tokens" not in _runs.views_of(place, run):
                raise Refused(409, f"{place.title} has no network that attends to sentences")
            with self._working:
                network, used = self._networks.get(place, run, step)
                try:
                    sample = run.recipe.task.read_text(typed.text, typed.task)
                except ValueError as error:  # an unknown character, or a sentence that is too long
                    raise Refused(400, str(error)) from error
                return BinaryResponse(sample_view(run, network, sample, {"run": place.title, "step": used}).body)

    def model_maps(self) -> Response:
        return self._model_view("nothing", None)

    def model_text(self, typed: ModelText) -> Response:
        return self._model_view("text", typed.text)

    def model_image(self, image: Annotated[bytes, File()]) -> Response:
        return self._model_view("image", lambda: to_tensor(decode(image)))

    def _model_view(self, takes: str, given: Any) -> Response:
        if self.model is None or self.model.takes != takes:
            known = "no model" if self.model is None else f"a model that takes {self.model.takes}"
            raise Refused(409, f"the studio was opened with {known}")
        content = given() if callable(given) else given  # before the lock: a slow image blocks no other request
        with self._working:
            return BinaryResponse(self.model.look(content).body)

    def page(
        self,
        name: Literal["mechanism", "convolution", "claims", "story"],
        run: Annotated[str | None, Query(max_length=300, description="story: a run to show in it")] = None,
    ) -> Response:
        if name != "story":
            return BinaryResponse(_page(name))
        if run is None:
            return BinaryResponse(self._stories.get("story", lambda: story().body))
        with self._opened(run) as (place, opened):
            written = network_signature(place.folder, opened.checkpoints.steps())
            return BinaryResponse(self._stories.get(str(place.folder), lambda: story(opened).body, state=written))

    def evidence(self, id: Annotated[str, Path(max_length=100)]) -> ClaimEvidence:
        try:
            claim = next(claim for claim in select(id) if claim.id == id)
        except (ValueError, StopIteration):
            raise Refused(404, f"there is no claim {id!r}") from None
        if claim.slow:
            raise Refused(409, f"{id} trains a network, which takes minutes: regard verify --slow --id {id}")
        with self._working:
            found = claim_evidence(examine(claim))
        return ClaimEvidence(id=id, verdict=found["verdict"], found=found["found"])

    @contextmanager
    def _opened(self, id: str) -> Iterator[tuple[RunFolder, Run]]:
        """A run. Errors that its files cause inside the block become messages about this run."""
        place = self.folder.place(id)
        with place.refusing():
            yield place, place.open()

    def _check_images(self, place: RunFolder, run: Run) -> None:
        if "image" not in _runs.views_of(place, run) or run.recipe.task.image_shape is None:
            raise Refused(409, f"{place.title} has no network that attends to images")

    def _look(self, place: RunFolder, run: Run, image: Any, step: int | None, label: str | None) -> Payload:
        self._check_images(place, run)
        task = run.recipe.task
        taken, shown = fit(image, task.image_shape or ())
        network, used = self._networks.get(place, run, step)
        sample = dataclasses.replace(task.read_image(taken), image=shown)
        return sample_view(run, network, sample, {"run": place.title, "step": used, "label": label})

    def _label(self, run: Run, source: Source, index: int) -> str | None:
        if source == "shipped":
            return _runs.shipped_label(_runs.shipped_images(run, self.folder.example)[index])
        task = run.recipe.task
        return task.describe(task.sample("test", index)) or None

    def _content(self, run: Run, source: Source, index: int) -> bytes:
        """One of the images to choose from, as a PNG file."""
        total = _runs.sample_counts(run, self.folder.example).get(source, 0)
        if index >= total:
            raise Refused(404, f"there is no image {index} of the {source} images; there are {total}")
        if source == "shipped":
            return _runs.shipped_images(run, self.folder.example)[index].read_bytes()
        image = run.recipe.task.sample("test", index).image
        if image is None:
            raise Refused(409, f"the samples of {run.recipe.name} have no image to show")
        return to_png(image)


@cache
def _page(name: str) -> bytes:
    # Claims come with their recorded verdicts; the page requests the evidence when a claim is opened.
    return (show(name, run=False) if name == "claims" else show(name)).payload.body
