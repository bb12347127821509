"""Downloads from a real server on this machine: whole, broken off, wrong, hostile, not there."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedlada.data.archives import OFFICIAL, Archive, Official
from fedlada.data.fetch import CannotFetch, download, fetch, unpack


class Server(ThreadingHTTPServer):
    """Serves `content`; can break off, ignore ranges or answer with an error."""

    content = b""
    break_after = None
    knows_ranges = True
    status = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        if server.status is not None:
            self.send_error(server.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.knows_ranges else 0
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if server.break_after is None else body[: server.break_after])

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def archive(server, content=None, name="data.tar.gz"):
    content = server.content if content is None else content
    url = f"http://127.0.0.1:{server.server_port}/path/{name}"
    return Archive(url, hashlib.sha256(content).hexdigest(), len(content))


def test_a_download_with_progress(tmp_path):
    with serving() as server:
        server.content = bytes(range(256)) * 4000
        told = []
        path = download(archive(server), tmp_path, progress=lambda *one: told.append(one))
        assert path.read_bytes() == server.content
        assert told[-1] == ("fetching data.tar.gz", 1_024_000, 1_024_000)
        assert len(told) > 2
        assert list(tmp_path.iterdir()) == [path]
        download(archive(server), tmp_path)  # what is there is not fetched again
        assert len(server.ranges) == 1


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_broken_download_goes_on(tmp_path, knows_ranges):
    with serving() as server:
        server.content = b"0123456789" * 50_000
        server.knows_ranges = knows_ranges
        server.break_after = 300_000
        with pytest.raises(CannotFetch, match=r"300000 bytes are kept, the same command resumes the download"):
            download(archive(server), tmp_path)
        server.break_after = None
        path = download(archive(server), tmp_path)
        assert path.read_bytes() == server.content
        assert server.ranges == [None, "bytes=300000-"]


def test_a_wrong_file_is_refused_and_not_kept(tmp_path):
    with serving() as server:
        server.content = b"something else"
        for official in (b"the real thing", b"shorter", b"much longer than that"):
            with pytest.raises(CannotFetch, match=r"not the official|connection ended"):
                download(archive(server, official), tmp_path)
            for part in tmp_path.glob("*.part"):
                part.unlink()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "data.tar.gz").write_bytes(b"put here by hand")
        with pytest.raises(CannotFetch, match=r"data.tar.gz is not the official .* remove it and fetch it again"):
            download(archive(server), tmp_path)
        assert (tmp_path / "data.tar.gz").exists()  # the user's file is the user's


def test_a_damaged_part_is_not_gone_on_with_forever(tmp_path):
    with serving() as server:
        server.content = b"abc" * 1000
        (tmp_path / "data.tar.gz.part").write_bytes(b"x" * 1000)
        with pytest.raises(CannotFetch, match="not the official"):
            download(archive(server), tmp_path)
        assert download(archive(server), tmp_path).read_bytes() == server.content


def test_offline_says_what_to_put_where(tmp_path):
    with serving() as server:
        server.content = b"abc"
        gone = archive(server)
    with pytest.raises(CannotFetch, match=rf"cannot be reached .*: put data.tar.gz into {tmp_path} by hand and run"):
        download(gone, tmp_path)
    with serving() as server:
        server.status = 404
        with pytest.raises(CannotFetch, match=r"answers 404 Not Found: put data.tar.gz into"):
            download(archive(server, b"abc"), tmp_path)


def tar(*entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries:
            file.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


OWNED = Path(tempfile.gettempdir(), "owned-by-fedlada-test")
HOSTILE = {
    "dots.tar.gz": tar(("set/a", b"1"), ("../owned", b"2")),
    "deep.tar.gz": tar(("set/../../owned", b"2")),
    "link.tar.gz": tar(("set/link", "/etc"), ("set/link/owned", b"2")),
    "outside.tar.gz": tar(("set/link", "../../owned")),
    "absolute.tar.gz": tar((str(OWNED), b"2")),
    "dots.zip": zipped(("set/a", b"1"), ("../owned", b"2")),
    "deep.zip": zipped(("set/../../owned", b"2")),
    "absolute.zip": zipped((str(OWNED), b"2")),
    "backslash.zip": zipped(("set\\..\\..\\owned", b"2")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_leaves_the_folder(tmp_path, name):
    inside = tmp_path / "data"
    inside.mkdir()
    (inside / name).write_bytes(HOSTILE[name])
    with pytest.raises(CannotFetch):
        unpack(inside / name, inside / "set")
    assert [path.name for path in tmp_path.rglob("*")] == ["data", name]
    assert not OWNED.exists()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_damaged_archives_are_named(tmp_path, name):
    whole = tar(("set/a", b"1" * 5000)) if name.endswith("gz") else zipped(("set/a", b"1" * 5000))
    for content in (whole[:-30], whole[:50], b"", gzip.compress(b"x")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CannotFetch, match=f"{name} (cannot be unpacked|holds no folder)"):
            unpack(tmp_path / name, tmp_path / "set")
        assert not (tmp_path / "set").exists()
    other = tar(("other/a", b"1")) if name.endswith("gz") else zipped(("other/a", b"1"))
    (tmp_path / name).write_bytes(other)
    with pytest.raises(CannotFetch, match="holds no folder set: it is not the official archive"):
        unpack(tmp_path / name, tmp_path / "set")


@pytest.mark.parametrize("make", [tar, zipped])
def test_a_whole_data_set(tmp_path, make):
    with serving() as server:
        server.content = make(("set/a", b"1"), ("set/b/c", b"2"))
        name = "set.zip" if make is zipped else "set.tar.gz"
        official = Official((archive(server, name=name),), folder="set", unpacks=True)
        assert fetch("cifar10", tmp_path, official=official) == tmp_path / "set"
        assert (tmp_path / "set" / "b" / "c").read_bytes() == b"2"
        assert [path.name for path in tmp_path.iterdir()] == ["set"]
        fetch("cifar10", tmp_path, official=official)
        assert len(server.ranges) == 1
        plain = Official((archive(server, name="x.gz"),), folder="inside", unpacks=False)
        fetch("mnist", tmp_path, official=plain)
        assert (tmp_path / "inside" / "x.gz").read_bytes() == server.content


def one_set(server, name="set.tar.gz", **more):
    return Official((archive(server, name=name),), folder="set", unpacks=True, **more)


@pytest.mark.slow
def test_two_fetches_at_once_download_once(tmp_path):
    """The second comes while the first is in the middle of its download, waits, and finds it done."""
    with serving() as server:
        server.content = tar(("set/a", bytes(range(256)) * 4000))
        first_is_there, second_asks = threading.Event(), threading.Event()

        def progress(*_):
            first_is_there.set()
            assert second_asks.wait(timeout=60)

        first = threading.Thread(
            target=fetch, args=("cifar10", tmp_path), kwargs={"progress": progress, "official": one_set(server)}
        )
        first.start()
        assert first_is_there.wait(timeout=60)
        command = [sys.executable, "-c", SECOND, str(tmp_path), repr(archive(server, name="set.tar.gz"))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
            said = second.stdout.readline()
            second_asks.set()
            rest = second.communicate(timeout=60)[0]
        first.join(timeout=60)
        assert (said, rest.splitlines()[-1], second.returncode) == ("waiting\n", "done", 0)
        assert len(server.ranges) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["set"]


SECOND = """
import logging
import sys
from pathlib import Path
from fedlada.data.archives import Archive, Official
from fedlada.data.fetch import fetch
class Say(logging.Handler):
    def emit(self, record):
        if "waiting" in record.msg:
            print("waiting", flush=True)
logging.getLogger("filelock").addHandler(Say())
logging.getLogger("filelock").setLevel(logging.DEBUG)
fetch("cifar10", Path(sys.argv[1]), official=Official((eval(sys.argv[2]),), folder="set", unpacks=True))
print("done")
"""


def test_an_archive_put_there_by_the_user_stays(tmp_path):
    with serving() as server:
        server.content = tar(("set/a", b"1"))
        (tmp_path / "set.tar.gz").write_bytes(server.content)
        fetch("cifar10", tmp_path, official=one_set(server))
        assert (tmp_path / "set" / "a").read_bytes() == b"1"
        assert (tmp_path / "set.tar.gz").read_bytes() == server.content
        assert server.ranges == []


def test_an_empty_folder_is_filled_and_an_incomplete_one_named(tmp_path):
    with serving() as server:
        server.content = tar(("set/a", b"1"))
        (tmp_path / "set").mkdir()
        fetch("cifar10", tmp_path, official=one_set(server, holds=("a",)))
        assert (tmp_path / "set" / "a").read_bytes() == b"1"
        (tmp_path / "set" / "a").rename(tmp_path / "set" / "mine")
        with pytest.raises(CannotFetch, match="set has no a: remove that folder, then the same command"):
            fetch("cifar10", tmp_path, official=one_set(server, holds=("a",)))
        assert (tmp_path / "set" / "mine").exists()
        (tmp_path / "file").mkdir()
        (tmp_path / "file" / "set").write_text("mine")
        with pytest.raises(ValueError, match="set is not a folder"):
            fetch("cifar10", tmp_path / "file", official=one_set(server))


def test_offline_names_all_files_and_leaves_no_folder(tmp_path):
    with serving() as server:
        server.content = b"abc"
        files = tuple(archive(server, name=name) for name in ("a.gz", "b.gz", "c.gz"))
    gone = Official(files, folder="set", unpacks=False)
    with pytest.raises(CannotFetch, match=rf"put a.gz, b.gz, c.gz into {tmp_path}/new/set by hand"):
        fetch("mnist", tmp_path / "new", official=gone)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "b.gz").write_bytes(b"abc")
    with pytest.raises(CannotFetch, match=r"put a.gz, c.gz into"):
        fetch("mnist", tmp_path, official=gone)
    for name in ("a.gz", "c.gz"):
        (tmp_path / "set" / name).write_bytes(b"abc")
    assert fetch("mnist", tmp_path, official=gone) == tmp_path / "set"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.gz", "b.gz", "c.gz", "set"]


def play_files(server, num=8):
    return tuple(archive(server, name=f"ps_{number}.xml") for number in range(num))


def test_files_one_by_one_in_a_folder_within_a_folder(tmp_path):
    """As Shakespeare's plays are; what is there is checked and not fetched again, whatever lies beside it."""
    with serving() as server:
        server.content = b"<play/>"
        official = Official(play_files(server), folder="clone/plays", unpacks=False)
        (tmp_path / "clone" / "plays").mkdir(parents=True)
        for name in ("ps_3.xml", "ps_poem.xml"):
            (tmp_path / "clone" / "plays" / name).write_bytes(b"<play/>")
        assert fetch("shakespeare", tmp_path, official=official) == tmp_path / "clone" / "plays"
        assert len(server.ranges) == 7
        assert len(list((tmp_path / "clone" / "plays").iterdir())) == 9
        assert [path.name for path in tmp_path.iterdir()] == ["clone"]
        fetch("shakespeare", tmp_path, official=official)
        assert len(server.ranges) == 7
        (tmp_path / "clone" / "plays" / "ps_3.xml").write_bytes(b"<mine/>")
        with pytest.raises(CannotFetch, match=r"ps_3.xml is not the official ps_3.xml"):
            fetch("shakespeare", tmp_path, official=official)
        server.status = 503
        with pytest.raises(
            CannotFetch, match=r"put ps_0.xml, ps_1.xml, ps_2.xml and 5 more into .*new/clone/plays by hand"
        ):
            fetch("shakespeare", tmp_path / "new", official=official)
        assert not (tmp_path / "new").exists()


def test_plays_are_fetched_at_a_commit():
    plays = OFFICIAL["shakespeare"].archives
    assert len(plays) == len({one.file for one in plays}) == len({one.sha256 for one in plays}) == 39
    for one in plays:
        assert one.url.startswith("https://raw.githubusercontent.com/severdia/PlayShakespeare.com-XML/9625f469af8a")
        assert len(one.sha256) == 64


def test_local_errors_do_not_blame_the_network(tmp_path):
    with serving() as server:
        server.content = b"abc" * 1000
        (tmp_path / "data.tar.gz.part").mkdir()
        with pytest.raises(CannotFetch, match=r"data.tar.gz.part cannot be (written|read): Is a directory"):
            download(archive(server), tmp_path)
        (tmp_path / "data.tar.gz").mkdir()
        with pytest.raises(CannotFetch, match=r"data.tar.gz cannot be read: Is a directory"):
            download(archive(server), tmp_path)
        (tmp_path / "file").write_text("mine")
        with pytest.raises(ValueError, match=r"file/deep cannot be made or written: Not a directory"):
            fetch("cifar10", tmp_path / "file" / "deep", official=one_set(server))


def test_what_cannot_be_gone_on_with_is_not_called_kept(tmp_path):
    with serving() as server:
        server.content = b"0123456789" * 50_000
        server.knows_ranges = False
        server.break_after = 300_000
        (tmp_path / "data.tar.gz.part").write_bytes(b"0" * 1000)
        with pytest.raises(CannotFetch, match="the connection ended") as caught:
            download(archive(server), tmp_path)
        assert "kept" not in str(caught.value)
        server.knows_ranges, server.break_after = True, 0
        (tmp_path / "data.tar.gz.part").unlink()
        with pytest.raises(CannotFetch, match="the connection ended after 0") as caught:
            download(archive(server), tmp_path)
        assert "kept" not in str(caught.value)


def test_the_official_archives_are_complete():
    for name, official in OFFICIAL.items():
        for one in official.archives:
            assert len(one.sha256) == 64, name
            assert one.num_bytes > 1000
            assert one.file
    with pytest.raises(ValueError, match="name must be one of mnist"):
        fetch("imagenet", None)
