"""Training: from a recipe to a network, resumable and observable.

>>> from regard.training import AdamW, Encoder, ImageTask, Recipe
>>> task = ImageTask("fashion-mini", validation=60, limit=64)
>>> recipe = Recipe("tiny", task, Encoder(dim=18, depth=1, hidden=8), AdamW(2e-3), epochs=1, batch_size=16)
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     run = regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)
...     [line["step"] for line in run.metrics], run.heads.steps
([1, 2, 3, 4, 4], (0, 1, 2, 3, 4))
"""

from regard.training._checkpoints import Checkpoint as Checkpoint
from regard.training._checkpoints import Checkpoints as Checkpoints
from regard.training._checkpoints import DamagedCheckpointError as DamagedCheckpointError
from regard.training._checkpoints import DiskFullError as DiskFullError
from regard.training._engine import train as train
from regard.training._evaluation import FlipAveraged as FlipAveraged
from regard.training._evaluation import Score as Score
from regard.training._evaluation import score as score
from regard.training._fabric import shut_down as shut_down
from regard.training._heads import Heads as Heads
from regard.training._heads import Trajectory as Trajectory
from regard.training._networks import Encoder as Encoder
from regard.training._networks import EncoderDecoder as EncoderDecoder
from regard.training._networks import Pyramid as Pyramid
from regard.training._networks import Recurrent as Recurrent
from regard.training._networks import ResNet as ResNet
from regard.training._networks import Text as Text
from regard.training._networks import Vision as Vision
from regard.training._optimizers import SGD as SGD
from regard.training._optimizers import AdamW as AdamW
from regard.training._optimizers import Muon as Muon
from regard.training._optimizers import Optimizer as Optimizer
from regard.training._recipe import Network as Network
from regard.training._recipe import Outcome as Outcome
from regard.training._recipe import Recipe as Recipe
from regard.training._recipe import Task as Task
from regard.training._results import SeedRuns as SeedRuns
from regard.training._results import evaluate_run as evaluate_run
from regard.training._results import train_seeds as train_seeds
from regard.training._results import write_result as write_result
from regard.training._run import Run as Run
from regard.training._run import load_run as load_run
from regard.training._schedule import Schedule as Schedule
from regard.training._sequences import CaseConversion as CaseConversion
from regard.training._sequences import MaskedLanguage as MaskedLanguage
from regard.training._sequences import Said as Said
from regard.training._sequences import alignment_of as alignment_of
from regard.training._sequences import length_sweep as length_sweep
from regard.training._sequences import said_right as said_right
from regard.training._stop import NonFiniteError as NonFiniteError
from regard.training._stop import TrainingInterrupted as TrainingInterrupted
from regard.training._tasks import ImageTask as ImageTask
