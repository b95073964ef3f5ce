"""Where each data set is downloaded from, and the checksums of its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.support.checks import check_choice

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Download:
    """One file to download, and the files of the data set (``members``) in it: an archive, or one compressed file."""

    file: str
    addresses: tuple[str, ...]
    size: int
    md5: str
    members: tuple[str, ...]

    @property
    def is_archive(self) -> bool:
        return self.file.endswith(".tar.gz")


@dataclass(frozen=True)
class Source:
    """The files of a data set and what they hold.

    ``files`` names the files of each split. ``members`` maps each file, decompressed, to its MD5 (SHA-256 for our own).
    ``folders`` lists where the files may be: downloads go to the first one, below the data folder; absolute ones are
    only read. ``mean`` and ``std`` are per channel, of the whole official training set in [0, 1]; a test computes them
    again from the files.
    """

    name: str
    title: str
    license: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    files: dict[Split, tuple[str, ...]]
    train_count: int
    members: dict[str, str]
    downloads: tuple[Download, ...]
    folders: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def embedded(self) -> bool:
        """Whether the files are part of the package."""
        return not self.downloads


_CIFAR10_MEMBERS = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    license="none stated",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    files={"train": tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)), "test": ("test_batch.bin",)},
    train_count=50_000,
    members=_CIFAR10_MEMBERS,
    downloads=(
        Download(
            file="cifar-10-binary.tar.gz",
            addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            size=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            members=tuple(_CIFAR10_MEMBERS),
        ),
    ),
    folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "."),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
)

_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_FILES: dict[Split, tuple[str, ...]] = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# Size and MD5 of each compressed file; both mirrors have the same files.
_FASHION_DOWNLOADS = {
    "train-images-idx3-ubyte": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    license="MIT",
    shape=(1, 28, 28),
    classes=_FASHION_CLASSES,
    files=_FASHION_FILES,
    train_count=60_000,
    members={
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    downloads=tuple(
        Download(f"{member}.gz", tuple(f"{mirror}{member}.gz" for mirror in _FASHION_MIRRORS), size, md5, (member,))
        for member, (size, md5) in _FASHION_DOWNLOADS.items()
    ),
    # The second is torchvision's layout, the last that of Debian's package dataset-fashion-mnist.
    folders=("fashion-mnist", "FashionMNIST/raw", ".", "/usr/share/datasets/fashion-mnist"),
    mean=(0.28604060,),
    std=(0.35302424,),
)

FASHION_MINI = Source(
    name="fashion-mini",
    title="6,000 + 1,000 images of Fashion-MNIST",
    license="MIT",
    shape=FASHION_MNIST.shape,
    classes=_FASHION_CLASSES,
    files=_FASHION_FILES,
    train_count=6_000,
    members={
        "train-images-idx3-ubyte": "cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084",
        "train-labels-idx1-ubyte": "097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a",
        "t10k-images-idx3-ubyte": "7cee33c3c6414b1b86c25e665a6c4f41584269de3b7cc9768b1d351922845eef",
        "t10k-labels-idx1-ubyte": "3128d790775889812b73c4f13923559c8b9e281d112c6ea7862acf60a206a909",
    },
    downloads=(),
    folders=(str(Path(__file__).parent / "files" / "fashion-mini"),),
    mean=(0.28691494,),
    std=(0.35377927,),
)

SOURCES = {source.name: source for source in (CIFAR10, FASHION_MNIST, FASHION_MINI)}


def names() -> tuple[str, ...]:
    """The data sets :func:`load` knows.

    >>> regard.data.names()
    ('cifar10', 'fashion-mnist', 'fashion-mini')
    """
    return tuple(SOURCES)


def source_of(name: str) -> Source:
    check_choice("name", name, names())
    return SOURCES[name]
