"""What a file of maps says besides its maps: what was missed, the notes, and which tokens stand for images."""

from dataclasses import asdict
from typing import Any, NamedTuple

from regard.maps._record import AttentionRecord, Missed
from regard.maps.tokens._segments import ImageTokens
from regard.support.reading import UnreadableError

FORMAT = {"format": "regard maps", "version": 1}


class MapsContent(NamedTuple):
    """Everything that :class:`regard.maps.Maps` hold, to be written to a file or read from one."""

    records: list[AttentionRecord]
    missed: list[Missed]
    notes: list[str]
    image_tokens: ImageTokens | None


def content_to_json(calls: list[dict[str, Any]], content: MapsContent) -> dict[str, Any]:
    """The description of a file.

    Args:
        calls: the descriptions of the records.
    """
    images = content.image_tokens
    return {
        **FORMAT,
        "calls": calls,
        "missed": list(map(asdict, content.missed)),
        "notes": content.notes,
        "image_tokens": None if images is None else asdict(images),
    }


def content_from_json(about: dict[str, Any], records: list[AttentionRecord]) -> MapsContent:
    """The inverse of :func:`content_to_json`, given the records. Older files do not state image tokens."""
    missed = [_missed(entry) for entry in about["missed"]]
    return MapsContent(records, missed, [str(note) for note in about["notes"]], _images(about.get("image_tokens")))


def _missed(entry: dict[str, Any]) -> Missed:
    found = Missed(**{**entry, "shape": None if entry["shape"] is None else tuple(entry["shape"])})
    if not (isinstance(found.name, str) and isinstance(found.reason, str) and type(found.count) is int):
        raise UnreadableError(f"{entry!r:.100} does not say what was missed")
    return found


def _images(fields: dict[str, Any] | None) -> ImageTokens | None:
    if fields is None:
        return None
    grid, grids = fields["grid"], [tuple(each) for each in fields["grids"]]
    found = ImageTokens(fields["token"], None if grid is None else tuple(grid), tuple(grids))
    sides = [*grids, *([] if found.grid is None else [found.grid])]
    if type(found.token) is not int or not all(
        len(pair) == 2 and all(type(n) is int and n > 0 for n in pair) for pair in sides
    ):
        raise UnreadableError(f"{fields!r:.100} does not say which tokens stand for images")
    return found
