"""URLs and checksums of the official archives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """One file to download."""

    url: str
    sha256: str
    num_bytes: int

    @property
    def file(self) -> str:
        """The file name."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Official:
    """The official distribution of a data set."""

    archives: tuple[Archive, ...]
    folder: str
    """Subfolder of the data folder for its files."""
    unpacks: bool
    """Whether the archives are unpacked into `folder`, or kept there as they are."""
    holds: tuple[str, ...] = ()
    """Files that the unpacked folder must have."""


def _idx(base: str, *files: tuple[str, str, int]) -> tuple[Archive, ...]:
    return tuple(Archive(f"{base}/{name}-ubyte.gz", sha256, size) for name, sha256, size in files)


OFFICIAL: dict[str, Official] = {
    "mnist": Official(
        # The author's own page now asks for a password; this is the mirror that torchvision uses.
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
        folder="mnist",
        unpacks=False,
    ),
    "fashion-mnist": Official(
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        folder="fashion-mnist",
        unpacks=False,
    ),
    "cifar10": Official(
        (
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                170_498_071,
            ),
        ),
        folder="cifar-10-batches-py",
        unpacks=True,
        holds=(*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    ),
    "cifar100": Official(
        (
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                169_001_437,
            ),
        ),
        folder="cifar-100-python",
        unpacks=True,
        holds=("train", "test"),
    ),
    "tinyimagenet": Official(
        (
            Archive(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                248_100_043,
            ),
        ),
        folder="tiny-imagenet-200",
        unpacks=True,
        holds=("wnids.txt", "train", "val/val_annotations.txt"),
    ),
}
"""By the names that `fedlada data fetch` takes."""
