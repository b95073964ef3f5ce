"""One rule for all commands: 2 if something that was typed cannot be used, 1 if the work or a check failed."""

import pytest

from regard.cli import COMMANDS, main
from regard.data import DataMissingError
from regard.support.files import DiskFullError
from regard.support.reading import UnreadableError
from regard.training import DamagedCheckpointError, NonFiniteError

LONG = "x" * 250  # as a file's name: the temporary file beside it has a longer one
TRAIN = "train demo --smoke --accelerator cpu --no-tensorboard --folder {empty}/new"
MISTYPED = [
    "fly",
    "train",
    "train nowhere",
    "train nowhere.py",
    "train --list nowhere",
    f"{TRAIN} --epochs 0",
    f"{TRAIN} --epochs x",
    f"{TRAIN} --fly 1",
    f"{TRAIN} --network.heads 5",
    f"{TRAIN} --batch-size 100000",
    f"{TRAIN} --task.data {{empty}}/photos",
    f"{TRAIN} --accelerator cuda",
    f"{TRAIN} --log-every 0",
    f"{TRAIN} --seeds 0",
    f"{TRAIN} --seeds 2 --batch-size 100000",
    f"{TRAIN} --seeds 2 --network.heads 5",
    f"{TRAIN} --seeds 2 --accelerator cuda",
    f"{TRAIN} --seeds 2 --keep 0",
    f"{TRAIN} --seeds 2 --resume true",
    f"{TRAIN} --resume true",
    f"{TRAIN} --resume {{empty}}/nothing",
    "train demo --smoke --accelerator cpu --folder {run}",
    "train demo --smoke --accelerator cpu --folder {file}",
    f"train demo --smoke --accelerator cpu --folder new/{LONG}{LONG}",
    f"{TRAIN} --result {{empty}}/{LONG}",
    "evaluate",
    "evaluate {empty}",
    "evaluate {empty}/nothing",
    "evaluate {file}",
    "evaluate {run} --which first",
    "evaluate {run} --which 1000000",
    "evaluate {run} --accelerator cuda",
    "evaluate {run} --lengths 4",
    "report {empty}",
    "report {file}",
    "report {run} {run}",
    "report {run} --lengths 4",
    "report {run} --output {empty}/new/page.txt",
    f"report {{run}} --output {{empty}}/{LONG}.html",
    "report {run} --samples -1",
    "report {run} --query 1 1",
    "report {run} --image {empty}/none.png",
    "report {run} --image {file}",
    "convert {empty}",
    "convert {empty}/nothing",
    "convert {file}",
    "convert {run} --to nothing",
    "convert {run} --tolerance -1",
    "convert {run} --input 0",
    "convert {run} --to convolution --input 3 32",
    "convert {run} --to convolution --output {run}",
    "verify nowhere",
    "verify --id nowhere",
    "verify --topic nowhere",
    "verify --json --picture {empty}/new/figure.png hw4-beta-spread",
    "verify --html {empty}/new/page.txt hw4-beta-spread",
    "studio {empty}/nothing",
    "studio {file}",
    "studio --port 99999",
    "studio {empty} --no-browser --model nowhere",
    "data",
    "data nothing",
    "data fetch nowhere",
    "bench nowhere",
    "demo --folder {file}",
    "demo --folder {run}",
    "demo --fly",
]


def code_of(words):
    try:
        return main(words)
    except SystemExit as stopped:  # from argparse and tyro
        return stopped.code


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize("line", MISTYPED)
def test_what_cannot_be_used_is_2_and_leaves_nothing_behind(image_run, tmp_path, monkeypatch, capsys, line):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("neither a run nor an image")
    monkeypatch.chdir(empty)
    assert code_of([word.format(empty=empty, file=file, run=image_run.folder) for word in line.split()]) == 2
    assert capsys.readouterr().err
    assert not list(empty.iterdir())


def test_every_command_is_in_the_table():
    assert {line.split()[0] for line in MISTYPED} >= COMMANDS.keys()


@pytest.mark.usefixtures("user_errors")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("dim must be 1 or more"), 2),
        (FileNotFoundError("no such run"), 2),
        (FileExistsError("already a run"), 2),
        (UnreadableError("the file is damaged"), 1),
        (DamagedCheckpointError("the checkpoint is damaged"), 1),
        (DataMissingError("no network"), 1),
        (DiskFullError(28, "no room"), 1),
        (PermissionError("may not be read"), 1),
        (NonFiniteError("diverged", 1, [0]), 1),
        (ImportError("needs rich"), 1),
        (MemoryError("too large"), 1),
        (KeyboardInterrupt("stopped"), 130),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_kind_of_an_error_decides_the_code_of_every_command(monkeypatch, capsys, command, error, code):
    def fail(arguments):
        raise error

    monkeypatch.setattr(f"regard.cli._{command}.run", fail)
    assert main([command]) == code
    assert str(error).splitlines()[0] in capsys.readouterr().err


def test_a_damaged_run_is_1(tmp_path, capsys):
    (tmp_path / "recipe.json").write_text("{")
    assert main(["evaluate", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("recipe.json") == 1
