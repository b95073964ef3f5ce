"""Train the toy recipes in as many processes as torchrun started: torchrun … process_script.py FOLDER"""

import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from streamed_photos import STREAMED, note_rows, streamed_recipe, use
from toy_training import ToyNetwork, ToyTask, toy_recipe

import regard
from regard.training import MuonSettings, _train

CASES = {
    "plain": {},
    "unequal": {"task": ToyTask(unequal=True), "accumulate": 3, "clip": 0.5, "average": 0.9},
    "muon": {"optimizer": MuonSettings(1e-2, matrix_learning_rate=0.02)},
    "uneven": {"accumulate": 6},  # more parts than a process has samples
    "statistics": {"network": ToyNetwork(batch_norm=True), "average": 0.5},  # each process has its own
}


def main(folder):
    torch.set_num_threads(1)
    for name, case in CASES.items():
        regard.train(toy_recipe(epochs=6, **case), folder=folder / name, accelerator="cpu", tensorboard=False)
    # Broken off and resumed: as many processes read the checkpoint and go on together.
    broken_off(toy_recipe(epochs=6), folder / "resumed", save_every=10, last=24)
    # The second process looks at the folder late, when the first one could have copied the checkpoint to it.
    choose = _train.choose_folder
    _train.choose_folder = lambda *arguments: time.sleep(torch.distributed.get_rank()) or choose(*arguments)
    regard.train(
        toy_recipe(epochs=6), folder=folder / "copied", resume=folder / "plain", accelerator="cpu", tensorboard=False
    )
    _train.choose_folder = choose
    # Images that are streamed from the disk, undisturbed and broken off in the middle of the second epoch.
    use(STREAMED["mapped"])
    photos = streamed_recipe(folder / "photos")
    note_rows(folder / f"rows-{torch.distributed.get_rank()}.jsonl")
    regard.train(photos, folder=folder / "streamed", accelerator="cpu", tensorboard=False)
    broken_off(photos, folder / "streamed-resumed", save_every=7, last=10)
    regard.training.shut_down()


def broken_off(recipe, folder, *, save_every, last):
    """Train, remove the last checkpoint, and resume from the one before it."""
    for resume in (False, "auto"):
        if resume == "auto":
            run = regard.load_run(folder)
            if torch.distributed.get_rank() == 0:
                shutil.rmtree(run.checkpoints.path(last))
            torch.distributed.barrier()
        regard.train(recipe, folder=folder, resume=resume, accelerator="cpu", save_every=save_every, tensorboard=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
