"""What the API takes and gives. The page knows nothing else of the server."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["training", "finished", "stopped"]
Kind = Literal["image", "case", "text", "other"]
View = Literal["heads", "image", "tokens"]


class Problem(BaseModel):
    """Every error."""

    error: str = Field(description="what is wrong, in words")


class About(BaseModel):
    version: str
    folder: str = Field(description="name of the folder whose runs are shown")


class RunSummary(BaseModel):
    """A run in the list."""

    id: str
    title: str
    recipe: str | None = Field(description="the recipe's name; null where the run cannot be read")
    kind: Kind = Field(description="what its network takes: an image, a sentence to write in another case, or words")
    state: State
    views: list[View] = Field(description="which views have something to show")
    example: bool = Field(description="whether it came with the package")
    step: int | None
    accuracy: float | None = Field(description="on what was held out, at the last evaluation")
    modified: float = Field(description="seconds since 1970")
    problem: str | None = Field(description="why it cannot be read")


class Checkpoint(BaseModel):
    step: int
    score: float | None


class RunDetail(RunSummary):
    settings: dict[str, Any] = Field(description="the recipe, as recipe.json has it")
    summary: dict[str, Any] | None = Field(description="what a finished run came to")
    checkpoints: list[Checkpoint]
    shape: tuple[int, int, int] | None = Field(description="(channels, height, width) of the images it takes")
    classes: list[str]
    samples: dict[str, int] = Field(description="how many images there are to choose from, by where they come from")
    suggestion: str | None = Field(description="a sentence to begin with")


class Metrics(BaseModel):
    """The lines of metrics.jsonl from an offset on."""

    model_config = ConfigDict(extra="forbid")

    lines: list[dict[str, Any]]
    offset: int = Field(description="go on from here")
    more: bool = Field(description="there are further lines already")
    anew: bool = Field(description="the file was cut: these lines begin at its beginning")
    state: State
    heads: int = Field(description="size of heads.jsonl in bytes; where it grew, the heads view has news")
    checkpoint: int | None = Field(description="the latest step that has one")


class Sample(BaseModel):
    source: Literal["test", "shipped"]
    index: int
    label: str | None
    address: str = Field(description="of the image, as PNG")


class Samples(BaseModel):
    samples: list[Sample]
    total: int


class Sentence(BaseModel):
    """What a person types."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=160)
    task: Literal["upper", "lower"] = "upper"


class EvidencePart(BaseModel):
    """What the check said to one variant of the statement."""

    name: str
    accepted: bool
    line: str
    counterexample: str
    numbers: list[tuple[str, str]]


class EvidencePicture(BaseModel):
    address: str = Field(description="the picture itself, as a data: address")
    words: str


class Found(BaseModel):
    agrees: bool = Field(description="whether evidence and record agree")
    line: str
    seconds: float
    parts: list[EvidencePart]
    picture: EvidencePicture | None


class ClaimEvidence(BaseModel):
    """What a claim's check found, just now."""

    id: str
    verdict: Literal["holds", "holds under", "fails"]
    found: Found
