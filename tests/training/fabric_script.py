"""Train the toy recipe in two processes that Fabric starts itself, slowly: python fabric_script.py FOLDER"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from toy_training import toy_recipe

import regard


def main(folder):
    torch.set_num_threads(1)
    regard.train(
        toy_recipe(epochs=6),
        folder=folder,
        resume="auto",
        accelerator="cpu",
        devices=2,
        save_every=5,
        tensorboard=False,
        listeners=[lambda event: time.sleep(0.02)],  # so that a kill meets it at work
    )
    regard.training.shut_down()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
