"""The requests and responses of the API, which is all that the page knows about the server."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["training", "finished", "stopped"]
Kind = Literal["image", "case", "text", "other"]
View = Literal["heads", "image", "tokens"]


class Problem(BaseModel):
    """The body of every error."""

    error: str = Field(description="what is wrong")


class ModelAbout(BaseModel):
    """A model that the studio was opened with."""

    name: str
    takes: Literal["text", "image", "nothing"] = Field(description="the kind of input; saved maps take none")
    suggestion: str | None = Field(description="a text to try")


class About(BaseModel):
    version: str
    folder: str = Field(description="name of the folder whose runs are shown")
    model: ModelAbout | None = Field(description="the model that the studio was opened with")


class RunSummary(BaseModel):
    """A run in the list."""

    id: str
    title: str
    recipe: str | None = Field(description="the recipe's name; null where the run cannot be read")
    kind: Kind = Field(
        description="the network's input: an image, a sentence to write in another case, text with masked words, or other"
    )
    state: State
    views: list[View] = Field(description="the views that have data")
    example: bool = Field(description="whether it came with the package")
    step: int | None
    accuracy: float | None = Field(description="validation accuracy at the last evaluation")
    modified: float = Field(description="seconds since 1970")
    problem: str | None = Field(description="why it cannot be read")


class CheckpointEntry(BaseModel):
    step: int
    score: float | None


class RunDetail(RunSummary):
    settings: dict[str, Any] = Field(description="the recipe, as in recipe.json")
    summary: dict[str, Any] | None = Field(description="the summary of a finished run")
    checkpoints: list[CheckpointEntry]
    shape: tuple[int, int, int] | None = Field(description="(channels, height, width) of the images it takes")
    classes: list[str]
    samples: dict[str, int] = Field(description="number of images to choose from, by source")
    suggestion: str | None = Field(description="a sentence to try")


class Metrics(BaseModel):
    """The lines of metrics.jsonl from an offset on."""

    model_config = ConfigDict(extra="forbid")

    lines: list[dict[str, Any]]
    offset: int = Field(description="continue at this offset")
    more: bool = Field(description="whether more lines are available")
    anew: bool = Field(description="whether the file was truncated: these lines are from its beginning")
    state: State
    heads: int = Field(description="size of heads.jsonl in bytes; when it grows, there is more to show")
    checkpoint: int | None = Field(description="the step of the latest checkpoint")


class ImageSample(BaseModel):
    source: Literal["test", "shipped"]
    index: int
    label: str | None
    address: str = Field(description="of the image, as PNG")


class ImageSamples(BaseModel):
    samples: list[ImageSample]
    total: int


class Sentence(BaseModel):
    """A sentence that the user typed."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=160)
    task: Literal["upper", "lower"] = "upper"


class ModelText(BaseModel):
    """A text for the model that the studio was opened with."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=4000)


class EvidencePart(BaseModel):
    """The result of the check for one variant of the claim."""

    name: str
    accepted: bool
    line: str
    counterexample: str
    numbers: list[tuple[str, str]]


class EvidencePicture(BaseModel):
    address: str = Field(description="the figure as a data: URL")
    words: str


class Found(BaseModel):
    agrees: bool = Field(description="whether evidence and record agree")
    line: str
    seconds: float
    parts: list[EvidencePart]
    picture: EvidencePicture | None


class ClaimEvidence(BaseModel):
    """The result of checking a claim now."""

    id: str
    verdict: Literal["holds", "holds under", "fails"]
    found: Found
