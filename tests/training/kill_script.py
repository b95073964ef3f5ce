"""Runs that are killed after so many lines of the training code, and resumed: python kill_script.py FOLDER KILLS

One process imports torch; each run is a fork of it. Prints JSON: for every kill whether what the resumed run left
differs from the undisturbed run's.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from toy_training import ToyNetwork, toy_recipe

import regard
from regard.training import start_fabric
from regard.training.events import Logged

torch.set_num_threads(1)
start_fabric(accelerator="cpu")  # imports its package once for all forks
CODE = str(Path(regard.training.__file__).parent)


def train(folder, resume="auto", listeners=()):
    recipe = toy_recipe(network=ToyNetwork(dropout=0.2, batch_norm=True), average=0.9, accumulate=2, clip=1.0)
    regard.train(
        recipe,
        folder=folder,
        resume=resume,
        accelerator="cpu",
        log_every=2,
        save_every=3,
        keep=2,
        tensorboard=False,
        listeners=listeners,
    )


def fork(action):
    """What the action returned, as JSON; None where it did not come to an end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        status = 1
        try:
            os.write(write, json.dumps(action()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, "a run failed"
    return json.loads(text)


def counted(folder, stop_at=None, inside=None):
    """Train while counting executed lines of the training code; die at number ``stop_at``, all of them or those of the
    function named ``inside``."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        if event == "line":
            count += 1
            if count == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return local

    def trace(frame, event, argument):
        code = frame.f_code
        wanted = code.co_filename.startswith(CODE) and inside in (None, code.co_name)
        return local if wanted else None

    def action():
        sys.settrace(trace)
        train(folder)
        sys.settrace(None)
        return count

    return fork(action)


def torn(folder, name, number):
    """Die with half of the ``number``-th checkpoint file on the disk, or with half a line after the ``number``-th log."""
    calls = 0

    def half_file(handle, actual=os.fsync):
        nonlocal calls
        path = Path(f"/proc/self/fd/{handle}").readlink()
        calls += path.name in ("state.safetensors", "state.json")
        if calls == number and path.is_file():
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        actual(handle)

    def half_line(event):
        nonlocal calls
        calls += isinstance(event, Logged)
        if calls == number:
            with (folder / "metrics.jsonl").open("ab") as file:
                file.write(b'{"step": 7, "lo')
            os.kill(os.getpid(), signal.SIGKILL)

    def action():
        if name == "file":
            os.fsync = half_file
        train(folder, listeners=[half_line] if name == "text" else ())
        return "finished"

    return fork(action)


def left(folder):
    """Everything a run leaves that may depend on how often it was killed."""
    run = regard.load_run(folder)
    checkpoint = run.checkpoint()
    tensors = {name: value.view(-1).view(torch.uint8).tolist() for name, value in checkpoint.tensors.items()}
    metrics = [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics]
    hidden = [path.name for path in run.checkpoints.folder.iterdir() if path.name.startswith(".")]
    return {
        "tensors": tensors,
        "metrics": metrics,
        "heads": (run.folder / "heads.jsonl").read_text(),
        "checkpoints": run.checkpoints.steps(),
        "left over": hidden,
        "step": checkpoint.state["step"],
    }


def main(folder, kills):
    fork(lambda: train(folder / "undisturbed"))
    expected = left(folder / "undisturbed")
    lines = counted(folder / "counted")
    saving = counted(folder / "counted-saving", inside="save")
    draw = random.Random(0)
    plans = [("line", draw.randrange(1, lines)) for _ in range(kills)]
    plans += [("save", number) for number in sorted(draw.sample(range(1, saving), 8))]
    plans += [("file", number) for number in (2, 3, 4)] + [("text", number) for number in (1, 3, 6)]
    report = []
    for kind, number in plans:
        place = folder / f"{kind}-{number}"
        if kind in ("file", "text"):
            died = torn(place, kind, number) is None
        else:
            died = counted(place, stop_at=number, inside="save" if kind == "save" else None) is None
            if kind == "line":  # once more, somewhere in what is left
                counted(place, stop_at=draw.randrange(1, lines))
        fork(lambda place=place: train(place))
        found = left(place)
        report.append(
            {"kill": [kind, number], "died": died, "differs": [key for key in expected if found[key] != expected[key]]}
        )
    print(json.dumps({"lines": lines, "steps": expected["step"], "kills": report}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
