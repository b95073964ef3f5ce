"""Training: from a recipe to a trained network, resumable and observable.

A recipe is built from a task and settings. A settings class is named after what it builds: ``AdamWSettings`` builds
:class:`torch.optim.AdamW`, ``ImageEncoderSettings`` builds :class:`regard.models.ImageEncoder`.

>>> from regard.training import AdamWSettings, ImageEncoderSettings, ImageTask, Recipe
>>> task = ImageTask("fashion-mini", validation=60, limit=64)
>>> network = ImageEncoderSettings(dim=18, depth=1, hidden=8)
>>> recipe = Recipe("tiny", task, network, AdamWSettings(2e-3), epochs=1, batch_size=16)
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     run = regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=False)
...     [line["step"] for line in run.metrics], run.heads.steps
([1, 2, 3, 4, 4], (0, 1, 2, 3, 4))
"""

from regard.support.files import DiskFullError as DiskFullError
from regard.training import events as events
from regard.training._checkpoints import Checkpoint as Checkpoint
from regard.training._checkpoints import Checkpoints as Checkpoints
from regard.training._checkpoints import DamagedCheckpointError as DamagedCheckpointError
from regard.training._evaluation import Score as Score
from regard.training._evaluation import score as score
from regard.training._fabric import is_first_process as is_first_process
from regard.training._fabric import shut_down as shut_down
from regard.training._fabric import start_fabric as start_fabric
from regard.training._head_trajectory import HeadPositions as HeadPositions
from regard.training._head_trajectory import HeadTrajectory as HeadTrajectory
from regard.training._lengths import measure_lengths as measure_lengths
from regard.training._lengths import sweep_lengths as sweep_lengths
from regard.training._network_settings import AttentionPyramidSettings as AttentionPyramidSettings
from regard.training._network_settings import ImageEncoderSettings as ImageEncoderSettings
from regard.training._network_settings import NetworkSettings as NetworkSettings
from regard.training._network_settings import PlainVisionTransformerSettings as PlainVisionTransformerSettings
from regard.training._network_settings import ResNet18Settings as ResNet18Settings
from regard.training._network_settings import Seq2SeqRNNSettings as Seq2SeqRNNSettings
from regard.training._network_settings import TextEncoderSettings as TextEncoderSettings
from regard.training._network_settings import TransformerSettings as TransformerSettings
from regard.training._network_settings import VisionTransformerSettings as VisionTransformerSettings
from regard.training._optimizer_settings import AdamWSettings as AdamWSettings
from regard.training._optimizer_settings import MuonSettings as MuonSettings
from regard.training._optimizer_settings import OptimizerSettings as OptimizerSettings
from regard.training._optimizer_settings import SGDSettings as SGDSettings
from regard.training._optimizer_settings import parameter_groups as parameter_groups
from regard.training._own_code import OwnCodeError as OwnCodeError
from regard.training._own_code import import_code as import_code
from regard.training._own_code import load_recipe as load_recipe
from regard.training._own_code import recipe_summaries as recipe_summaries
from regard.training._recipe import Recipe as Recipe
from regard.training._recipe_json import changed_name as changed_name
from regard.training._recipe_json import decode as decode
from regard.training._recipe_json import differences as differences
from regard.training._recipe_json import encode as encode
from regard.training._results import SeedRuns as SeedRuns
from regard.training._results import evaluate_run as evaluate_run
from regard.training._results import measure_run as measure_run
from regard.training._results import save_evaluation as save_evaluation
from regard.training._results import train_seeds as train_seeds
from regard.training._results import write_result as write_result
from regard.training._results import write_sweep as write_sweep
from regard.training._run import Run as Run
from regard.training._run import load_run as load_run
from regard.training._schedule import ScheduleSettings as ScheduleSettings
from regard.training._stop import LostProcessError as LostProcessError
from regard.training._stop import NonFiniteError as NonFiniteError
from regard.training._stop import TrainingInterrupted as TrainingInterrupted
from regard.training._tensorboard import sample_figures as sample_figures
from regard.training._train import train as train
from regard.training.tasks import CaseConversion as CaseConversion
from regard.training.tasks import FlipAveraged as FlipAveraged
from regard.training.tasks import GenerationAccuracy as GenerationAccuracy
from regard.training.tasks import ImageTask as ImageTask
from regard.training.tasks import MaskedLanguage as MaskedLanguage
from regard.training.tasks import Outcome as Outcome
from regard.training.tasks import Repetition as Repetition
from regard.training.tasks import Sample as Sample
from regard.training.tasks import SampleAttention as SampleAttention
from regard.training.tasks import Task as Task
from regard.training.tasks import attention_maps as attention_maps
from regard.training.tasks import generation_accuracy as generation_accuracy
