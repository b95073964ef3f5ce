"""Event files, which TensorBoard reads.

Written here and not by ``torch.utils.tensorboard``: that writes in a thread of its own, where a full disk ends in a
stack trace, and opens the file anew for every number.
"""

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.training._checkpoints import reporting_full_disk


class EventFile:
    """A new event file in ``folder``, to which numbers and pictures are added as they come.

    Args:
        folder: TensorBoard's ``--logdir``, or a folder in it.
        step: the run's step; what earlier files say about later steps is no longer shown.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
        except ImportError as missing:
            raise ImportError("tensorboard=True needs tensorboard: pip install 'regard[train]'") from missing
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        # Names in the order of time, for TensorBoard reads them in that of names.
        self.path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._size = 0
        with reporting_full_disk(folder, "event file", 0):
            folder.mkdir(parents=True, exist_ok=True)
        self._add(file_version="brain.Event:2")
        # Also where a run begins anew because it was killed before its first checkpoint.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=step + 1 if step else 0, session_log=start)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by their names."""
        made = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=self._summary(value=made))

    def figure(self, step: int, name: str, figure: Any) -> None:
        """A matplotlib figure."""
        content = io.BytesIO()
        figure.savefig(content, format="png")
        width, height = (int(length) for length in figure.get_size_inches() * figure.dpi)
        image = self._summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content.getvalue())
        self._add(step=step, summary=self._summary(value=[self._summary.Value(tag=name, image=image)]))

    def _add(self, **fields: Any) -> None:
        """One record, whole or not at all: a reader stops at a torn one."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(self._event(wall_time=time.time(), **fields).SerializeToString())
        content = record.getvalue()
        with reporting_full_disk(self.path.parent, "next entry of the event file", len(content)):
            try:
                with self.path.open("ab", buffering=0) as file:
                    written = file.write(content)
                    while written < len(content):
                        written += file.write(content[written:])
            except OSError:
                if self.path.exists():
                    os.truncate(self.path, self._size)
                raise
        self._size += len(content)
