"""Train the toy recipes in as many processes as torchrun started: torchrun … process_script.py FOLDER"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from toy_training import ToyTask, toy_recipe

import regard
from regard.training import MuonSettings

CASES = {
    "plain": {},
    "unequal": {"task": ToyTask(unequal=True), "accumulate": 3, "clip": 0.5, "average": 0.9},
    "muon": {"optimizer": MuonSettings(1e-2, matrix_learning_rate=0.02)},
    "uneven": {"accumulate": 6},  # more parts than a process has samples
}


def main(folder):
    torch.set_num_threads(1)
    for name, case in CASES.items():
        regard.train(toy_recipe(epochs=6, **case), folder=folder / name, accelerator="cpu", tensorboard=False)
    # Broken off and resumed: as many processes read the checkpoint and go on together.
    resumed = toy_recipe(epochs=6)
    for resume in (False, "auto"):
        if resume == "auto":
            run = regard.load_run(folder / "resumed")
            import shutil

            if torch.distributed.get_rank() == 0:
                shutil.rmtree(run.checkpoints.path(24))
            torch.distributed.barrier()
        regard.train(
            resumed, folder=folder / "resumed", resume=resume, accelerator="cpu", save_every=10, tensorboard=False
        )
    regard.training.shut_down()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
