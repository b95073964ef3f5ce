"""The list of runs, cached: a run whose files have not changed is not read again."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.studio import _runs
from regard.studio._models import RunSummary
from regard.studio._run_folders import RunFolder, signature

AGAIN = 10.0  # seconds after which an unreadable run is tried again, since the user's code may have changed


@dataclass(frozen=True)
class Entry:
    """A summary, the files it was made of, and when it was made."""

    files: tuple[object, ...]
    summary: RunSummary
    json: bytes
    made: float


class Summaries:
    """Keeps the summary of each run until one of its files changes."""

    def __init__(self) -> None:
        self._kept: dict[Path, Entry] = {}
        self._lock = threading.Lock()  # two concurrent requests would read everything twice

    def listed(self, places: Mapping[str, RunFolder]) -> bytes:
        """All runs as a JSON list, the latest first; those that cannot be read and the example come last."""
        with self._lock:
            entries = [self._entry(place) for place in places.values()]
            self._kept = {place.folder: entry for place, entry in zip(places.values(), entries, strict=True)}
        entries.sort(
            key=lambda entry: (entry.summary.example, entry.summary.problem is not None, -entry.summary.modified)
        )
        return b"[" + b",".join(entry.json for entry in entries) + b"]"

    def _entry(self, place: RunFolder) -> Entry:
        kept, files, now = self._kept.get(place.folder), signature(place.folder), time.time()
        if kept is not None and kept.files == files and kept.summary.id == place.id:
            summary = kept.summary
            silent = summary.state == "training" and now - summary.modified >= _runs.SILENT
            if not silent and (summary.problem is None or now - kept.made < AGAIN):
                return kept
        summary = _runs.summarize(place)
        return Entry(files, summary, summary.model_dump_json().encode(), now)
