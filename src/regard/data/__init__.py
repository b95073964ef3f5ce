"""Data sets, augmentation and loaders.

>>> data = regard.data.load("fashion-mini")
>>> augmentation = regard.data.Augmentation(crop=2, flip="random")
>>> loader = regard.data.Loader(regard.data.AugmentedImages(data.train, augmentation), batch_size=128, seed=1)
>>> images, labels, indices = next(loader.epoch(0))
>>> tuple(images.shape), tuple(labels.shape)
((128, 1, 28, 28), (128,))
"""

from regard.data._augment import Augmentation as Augmentation
from regard.data._augment import cutout as cutout
from regard.data._augment import move as move
from regard.data._augment import normalize as normalize
from regard.data._augmented import AugmentedImages as AugmentedImages
from regard.data._augmented import ImageBatch as ImageBatch
from regard.data._cache import DataMissingError as DataMissingError
from regard.data._cache import Status as Status
from regard.data._cache import data_folder as data_folder
from regard.data._cache import fetch as fetch
from regard.data._cache import status as status
from regard.data._case import CaseTask as CaseTask
from regard.data._case import SequenceBatch as SequenceBatch
from regard.data._decode_image import IMAGE_FORMATS as IMAGE_FORMATS
from regard.data._decode_image import MOST_BYTES as MOST_BYTES
from regard.data._decode_image import ImageRefusedError as ImageRefusedError
from regard.data._decode_image import decode_image as decode_image
from regard.data._download import DownloadError as DownloadError
from regard.data._image_sets import DataSet as DataSet
from regard.data._image_sets import ImageSet as ImageSet
from regard.data._image_sets import load as load
from regard.data._loader import Examples as Examples
from regard.data._loader import Loader as Loader
from regard.data._mix import beta_quantile as beta_quantile
from regard.data._mix import cutmix as cutmix
from regard.data._mix import label_weights as label_weights
from regard.data._mix import mixup as mixup
from regard.data._mix import partners as partners
from regard.data._open import open_data as open_data
from regard.data._open import own_path as own_path
from regard.data._random import random_below as random_below
from regard.data._random import random_bits as random_bits
from regard.data._random import random_coin as random_coin
from regard.data._random import random_number as random_number
from regard.data._random import random_order as random_order
from regard.data._random import random_uniform as random_uniform
from regard.data._repeats import RepeatedPieces as RepeatedPieces
from regard.data._sources import names as names
from regard.data._sources import source_of as source_of
from regard.data._text import MaskedBatch as MaskedBatch
from regard.data._text import MaskedText as MaskedText
from regard.data._text import NextTokenBatch as NextTokenBatch
from regard.data._text import NextTokens as NextTokens
from regard.data._text import TextData as TextData
from regard.data._text import embedded_text as embedded_text
from regard.data._text import load_text as load_text
from regard.data._text import mask_tokens as mask_tokens
from regard.data._trivial_augment import trivial_augment as trivial_augment
from regard.data._vocabulary import Vocabulary as Vocabulary
from regard.data.own_images import OwnDataSet as OwnDataSet
from regard.data.own_images import StreamedSet as StreamedSet
from regard.data.own_images import UnsuitableDataError as UnsuitableDataError
from regard.data.own_images import fit_image as fit_image
