"""Your own images: folders, arrays, copies of CIFAR and saved data sets, in memory or streamed from the disk."""

from regard.data.own_images._cache_file import decoding_memory as decoding_memory
from regard.data.own_images._decode import fit_image as fit_image
from regard.data.own_images._errors import UnsuitableDataError as UnsuitableDataError
from regard.data.own_images._own_data_set import OwnDataSet as OwnDataSet
from regard.data.own_images._own_data_set import forget_changed as forget_changed
from regard.data.own_images._own_data_set import open_images as open_images
from regard.data.own_images._streamed import StreamedSet as StreamedSet
