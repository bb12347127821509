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
    """Subfolder of the data folder for its files; it may lie in another."""
    unpacks: bool
    """Whether the archives are unpacked into `folder`, or kept there as they are."""
    holds: tuple[str, ...] = ()
    """Files that the unpacked folder must have."""


def _idx(base: str, *files: tuple[str, str, int]) -> tuple[Archive, ...]:
    return tuple(Archive(f"{base}/{name}-ubyte.gz", sha256, size) for name, sha256, size in files)


PLAYS_COMMIT = "9625f469af8ac8e2349f18d98a99f2b206248e4b"
"""Of severdia/PlayShakespeare.com-XML on GitHub; its texts are licensed under the GFDL 1.3."""


def _plays(*plays: tuple[str, str, int]) -> tuple[Archive, ...]:
    base = f"https://raw.githubusercontent.com/severdia/PlayShakespeare.com-XML/{PLAYS_COMMIT}/playshakespeare_editions"
    return tuple(Archive(f"{base}/ps_{name}.xml", sha256, size) for name, sha256, size in plays)


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
    "shakespeare": Official(
        # GitHub's generated archives have no fixed checksum, files at a commit do.
        _plays(
            ("alls_well_that_ends_well", "72fccfcbf09684effafc8c9bdf92114125340a2e682f7e0d1fe5e5c6cf482eea", 358_834),
            ("antony_cleopatra", "69707b552292f5aeb2ee44136a4113c142f08a8c87d3a6e72bfdd6803a27a443", 501_662),
            ("as_you_like_it", "feaabfabcdc83a5b009267e5d186edbc2dd4e112a25efbdad6f9c945ffe483d3", 315_547),
            ("comedy_of_errors", "928c4bb8292e9a91f10f7617e249cbe0b34973637443e2ef685e030bb9f4de68", 235_867),
            ("coriolanus", "72d93e52e110f591a8599407c068fc22ec5e295b7a2117db384fe2491e1fd398", 486_263),
            ("cymbeline", "f32f1cb5723df0b4d4f48845425026817286630a1c06e911316f1861d657aaea", 458_876),
            ("hamlet", "e86fa1303b23198785f4eff0f6977fa8bd6889c2469d9160bf58dff7cc4bfcb3", 492_641),
            ("henry_iv_pt1", "c90e0dee6a8072edff013767c9c676f419efc7d4ecac751bc5b46d55c31d9b43", 354_228),
            ("henry_iv_pt2", "df0fe9cb139e5e1ee5c9018f3339bf88778cb300d55b5074f37c75714b877632", 382_369),
            ("henry_v", "553d395f5597e692eecb19eb55dc73d82bad27b66fe410d273119703440e0b94", 381_255),
            ("henry_vi_pt1", "010a54b647c8998310a43b2c87c7d2edc65889de260ba733a9307d97506c4313", 388_714),
            ("henry_vi_pt2", "266e8ed2516b5163623c7761eeb4889be2a663c10c452ad5db0b70f969556fce", 434_325),
            ("henry_vi_pt3", "a04a944c75727b682c7d8245091d2b6076632f2cd1f786d8800b16cd5ec76bd9", 424_069),
            ("henry_viii", "6f359b74914560592af1a4ec6a3c7c4c7bdf09e606216006491e7cd68a03d7f5", 424_250),
            ("julius_caesar", "7d6e09932b669f2099266a3da83433a986c42c3ba20d3d25ef195533ca409333", 343_854),
            ("king_john", "8dd40eefc59a5705ca18f1f4dd28542a62b5310ffe0f1338cf6d86670f62469c", 322_101),
            ("king_lear", "d7bf9876db79bf2df02fc8f6bba5ebfaab12953994857239d2c561fe30768adc", 451_562),
            ("king_richard_ii", "cbc20aabb7dcf7b0d1b30560a8a1ff78a97b14ceb5d5e71a273cabad29ae8770", 355_383),
            ("loves_labours_lost", "d90c3fcfebb2e3d9c31f7e2b53fb4b575aa44c6e45f6d9db6537615ec3151a13", 364_828),
            ("macbeth", "ab61c685fe1ccfb6e84e41ca2597aa88ed236570ec99b6c9f1f1ee464f2d5f50", 327_314),
            ("measure_for_measure", "3a7c71bc58fb18a7a29b09363ad9a74fdfe0d54d0a43c807d5b9fef7e7660b2c", 341_905),
            ("merchant_of_venice", "6ec1e326c31eca8cb8d0df198a08d989b96bedd13a43e16dab904fe7f03c9701", 311_655),
            ("merry_wives_of_windsor", "b3e99271b1f79d9a88f5b5e8bb0fe674aea1f91263dd998c4f834b98cf0a1f31", 334_412),
            ("midsummer_nights_dream", "74e02b4490fd57f37595e19635ce6fedbcbf2d9bb8ed649a2d60f7ce51716ac7", 264_807),
            ("much_ado_about_nothing", "a74c033861c2e3c0162f8a4c48b9319316c9e62c778eb326a12cc8a1c95fb64f", 300_915),
            ("othello", "31f2cc47d955f8d2d2f97348de6675b1a4d5273e0460b02b56d30c6181dadd5c", 439_243),
            ("pericles", "48cb91927064c1707a478c1a799ff596e97e154eed30d143117f4f53a4611a67", 327_515),
            ("richard_iii", "7af81a6cd158ef1ca9874628e20e228d73a9f6918bde837086c07e1a7f099e5a", 517_394),
            ("romeo_and_juliet", "9279018e10eb7619c662cea10e7c58f4e15c30bef6aef5b3f28f3106d86ac181", 397_056),
            ("sir_thomas_more", "b1f849ba52cce22ecfd396ef322d734d0763d1c44d6a987fe1992fb3636018fa", 340_369),
            ("taming_of_the_shrew", "6b94a9d2160fb46a0c71d2bd288cde68f4a56bc94c2315af095adc108cafa943", 352_660),
            ("tempest", "ee66c3884abc64e19691a098743728dd0d7f2f88c8940617fa5310d459257d08", 282_113),
            ("timon_of_athens", "6310a14f94b140de6386cc610f4179248f82edc4eb4c0fe37f167be55f35a309", 332_268),
            ("titus_andronicus", "6ec4133d250f177db68985b2440805382870650f4687ee3a2f1b21cdb1da3393", 334_251),
            ("troilus_and_cressida", "cc186579b439da9ef9981833f1dd40533053bcfbb2ac1a8860e590c12706406a", 436_757),
            ("twelfth_night", "0674758d30e4a4667f8b1eea9d303b2be200e05d9ff3a87b693f4991b883e6d0", 306_675),
            ("two_gentlemen_of_verona", "4c6180233ea4d70516d7d4b22b15a6af9b0e4cd79196bea3298400ad7fcbd504", 285_929),
            ("two_noble_kinsmen", "0db17546f1db0a0a56f33746ef1d561bd4b43813338b3d6d3263d7be06b7ce46", 417_644),
            ("winters_tale", "5a26e2b2ce12873126f1bcbee406842e4a5ad17ccdc4812d291f78bad69a35f8", 377_544),
        ),
        folder="PlayShakespeare.com-XML/playshakespeare_editions",
        unpacks=False,
    ),
}
"""By the names that `fedlada data fetch` takes."""
