"""Event files, which TensorBoard reads.

We do not use ``torch.utils.tensorboard``: it writes in a thread, where a full disk ends in a stack trace, and opens
the file again for every number.
"""

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.support.files import append_whole, reporting_full_disk


class EventFile:
    """A new event file in ``folder``, to which numbers and figures are added.

    Args:
        folder: TensorBoard's ``--logdir``, or a folder in it.
        step: the step a run resumes from; TensorBoard no longer shows later steps of earlier files.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
        except ImportError as missing:
            raise ImportError("tensorboard=True needs tensorboard: pip install 'regard[train]'") from missing
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        # TensorBoard reads files in the order of their names, so a new one must be the last, also if the clock was set back.
        earlier = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*"))
        stamp = max(time.time_ns(), *(int(name) + 1 for name in earlier if name.isdecimal()), 0)
        self.path = folder / f"events.out.tfevents.{stamp}.{socket.gethostname()}.{os.getpid()}"
        self._size = 0
        with reporting_full_disk(folder, "event file", 0):
            folder.mkdir(parents=True, exist_ok=True)
        self._add(file_version="brain.Event:2")
        # Also at step 0, for a run that was killed before its first checkpoint.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=step + 1 if step else 0, session_log=start)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers by name."""
        made = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=self._summary(value=made))

    def figure(self, step: int, name: str, figure: Any) -> None:
        """Add a matplotlib figure."""
        content = io.BytesIO()
        figure.savefig(content, format="png")
        width, height = (int(length) for length in figure.get_size_inches() * figure.dpi)
        image = self._summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content.getvalue())
        self._add(step=step, summary=self._summary(value=[self._summary.Value(tag=name, image=image)]))

    def _add(self, **fields: Any) -> None:
        """Write one record completely or not at all: a reader stops at an incomplete one."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(self._event(wall_time=time.time(), **fields).SerializeToString())
        content = record.getvalue()
        with reporting_full_disk(self.path.parent, "next entry of the event file", len(content)):
            append_whole(self.path, content, self._size)
        self._size += len(content)
