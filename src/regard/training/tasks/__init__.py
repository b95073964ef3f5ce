"""Tasks: the data, the loss and the metrics that a network is trained with; see :class:`Task` for the interface."""

from regard.training.tasks._attention_maps import attention_maps as attention_maps
from regard.training.tasks._attention_maps import evaluation_mode as evaluation_mode
from regard.training.tasks._case_conversion import CaseConversion as CaseConversion
from regard.training.tasks._case_conversion import GenerationAccuracy as GenerationAccuracy
from regard.training.tasks._case_conversion import generation_accuracy as generation_accuracy
from regard.training.tasks._image_task import FlipAveraged as FlipAveraged
from regard.training.tasks._image_task import ImageTask as ImageTask
from regard.training.tasks._masked_language import MaskedLanguage as MaskedLanguage
from regard.training.tasks._repetition import Repetition as Repetition
from regard.training.tasks._task import Outcome as Outcome
from regard.training.tasks._task import Sample as Sample
from regard.training.tasks._task import SampleAttention as SampleAttention
from regard.training.tasks._task import Split as Split
from regard.training.tasks._task import Task as Task
