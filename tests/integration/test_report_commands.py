"""`fedlada report` and `fedlada watch` as a user meets them."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import sys
import threading

import pytest
import torch

import fedlada as library
from command_line import running, wait_until
from fedlada.workbench.cli import main
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.stored import write_command, write_tables
from fedlada.workbench.report.table import Table
from fedlada.workbench.report.watch import LiveReport, serve
from tasks import UNEQUAL, blobs, small_net

QUICK = {"model": "mlp", "local_steps": 2, "num_clients": 8, "cohort_size": 2, "rounds": 3}
TABLE = Table("a table", ("method",), (("fedavg",), ("fedlada",)))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What a small comparison leaves, made in this process: several tests look at it."""
    folder = tmp_path_factory.mktemp("runs") / "compared"
    for method in ("fedavg", "fedlada"):
        for seed in (0, 1):
            Experiment(method=method, seed=seed, **QUICK).run(out=folder / f"{method}-seed{seed}")
    write_tables(folder, [TABLE])
    write_command(folder, "fedlada compare --methods fedavg,fedlada")
    return folder


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run a command in this process, in an empty folder: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedlada", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code, *capsys.readouterr()

    return call


def data_of(path):
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_report_makes_a_page_and_pictures(compared, command, tmp_path):
    code, out, _ = command("report", compared, "--out", "new/page.html", "--plots", "plots", "--formats", "svg")
    assert code == 0
    assert "4 runs in new/page.html" in out
    data = data_of(tmp_path / "new" / "page.html")
    assert data["title"] == "fedavg, fedlada on digits"
    assert [run["label"] for run in data["runs"]] == [f"{m}, seed {s}" for m in ("fedavg", "fedlada") for s in (0, 1)]
    assert data["command"] == "fedlada compare --methods fedavg,fedlada"
    assert data["tables"][0]["rows"] == [["fedavg"], ["fedlada"]]
    assert len(data["partitions"]) == 2  # one for each seed
    assert sum(map(sum, data["partitions"][0])) == 1497
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"test_accuracy-by-rounds.svg", "test_accuracy-by-megabytes.svg", "drift-by-seconds.svg"} <= names
    assert all(name.endswith(".svg") for name in names)


def test_a_run_made_from_python_and_several_folders(compared, command, tmp_path):
    data = blobs()
    library.simulate(small_net(), data, test=data, partition=UNEQUAL, cohort_size=2, rounds=2, out=tmp_path / "mine")
    clients = tmp_path / "mine" / "clients.json"
    assert list(map(sum, json.loads(clients.read_text())["labels_per_client"])) == [40, 7, 1, 42, 30]
    assert command("report", "mine")[0] == 0
    assert len(data_of(tmp_path / "mine" / "report.html")["partitions"][0]) == 5
    clients.write_text('{"labels_per_client": [[1], [2, 3]]}')  # damaged: not shown
    assert command("report", "mine", compared)[0] == 0
    shown = data_of(tmp_path / "report.html")
    assert len(shown["runs"]) == 5
    assert shown["runs"][0]["command"] == ""
    assert shown["runs"][0]["clients"]["labels"] is None
    assert shown["command"] == f"fedlada report mine {compared} --out report.html"


def test_labels_that_are_no_classes_are_not_counted(tmp_path):
    x, y = blobs()
    options = {"partition": UNEQUAL, "rounds": 1}
    library.simulate(torch.nn.Linear(4, 1), (x, y[:, None].astype(float)), out=tmp_path / "numbers", **options)
    assert not (tmp_path / "numbers" / "clients.json").exists()


def test_what_cannot_be_reported_is_a_sentence(compared, command, tmp_path):
    for words, sentence in (
        (("report", "nowhere"), "there is no folder nowhere"),
        (("report", "."), "holds no run"),
        (("report", compared, "--out", "."), "is a folder: --out names the page"),
        (("report", compared, "--formats", "gif"), "'gif' is not known"),
        (("watch", "nowhere"), "there is no folder nowhere"),
    ):
        code, _, errors = command(*words)
        assert (code, errors.count("\n")) == (2, 1)
        assert sentence in errors
    assert list(tmp_path.iterdir()) == []


def test_watch_says_where_it_is_and_ends_with_ctrl_c(compared, command):
    with running(["watch", compared]) as process:
        wait_until(lambda: "\n" in process.stdout, process)
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout)[1])
        code, _, taken = command("watch", compared, "--port", port)
        assert code == 2
        assert f"port {port} cannot be used: Address already in use" in taken
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/data")
        assert len(json.loads(connection.getresponse().read())["runs"]) == 4
        os.kill(process.pid, signal.SIGINT)  # with a connection still open
        assert process.wait() == 0
        connection.close()
        errors = process.stderr
    assert errors == "fedlada: stopped watching; the runs continue\n"


@pytest.fixture
def watched(compared, tmp_path):
    folder = tmp_path / "growing"
    shutil.copytree(compared, folder)
    server = serve(LiveReport(folder, "growing"), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield folder, server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def versions(body):
    return {run["id"]: run["version"] for run in json.loads(body)["runs"]}


def test_watch_sends_only_what_has_changed(watched):
    folder, port = watched
    status, headers, body = ask(port, "/data")
    assert status == 200
    before = versions(body)
    assert ask(port, "/data", If_None_Match=headers["ETag"])[::2] == (304, b"")
    metrics = folder / "fedlada-seed1" / "metrics.jsonl"
    line = json.dumps({**json.loads(metrics.read_text().splitlines()[0]), "round": 4})
    with metrics.open("a") as file:
        file.write(line[:30])
    assert versions(ask(port, "/data")[2]) == before  # half a round
    with metrics.open("a") as file:
        file.write(line[30:] + "\n")
    after = versions(ask(port, "/data", If_None_Match=headers["ETag"])[2])
    (changed,) = [name for name in after if after[name] != before[name]]
    status, headers, body = ask(port, f"/run/{changed}")
    assert json.loads(body)["x"]["round"] == [1, 2, 3, 4]
    assert ask(port, f"/run/{changed}", If_None_Match=headers["ETag"])[0] == 304
    shutil.rmtree(folder / "fedavg-seed0")
    assert len(json.loads(ask(port, "/data")[2])["runs"]) == 3
    shutil.rmtree(folder)
    gone = json.loads(ask(port, "/data")[2])
    assert gone["runs"] == []
    assert gone["notes"] == [f"The folder {folder} is no longer there."]


def test_watch_answers_this_machine_alone_and_serves_no_file(watched):
    _, port = watched
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200
    for host in ("evil.test", f"evil.test:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        status, _, body = ask(port, "/data", Host=host)
        assert (status, body) == (421, b"Misdirected Request\n")
    for path in ("/config.json", "/run/", "/run/../table.md", "/%2e%2e/etc/passwd", "/data/", "/index.html", "/run/x"):
        assert ask(port, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(port, "/data", method)[0] == 501
    status, headers, body = ask(port, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_comparison_names_the_seeds_that_failed(command, tmp_path):
    wild = ["--methods", "fedavg", "--seeds", "3,4", "--lr", "1e30", "--weight-decay", "1e10", "--rounds", 2]
    quick = ["--model", "mlp", "--num-clients", 8, "--cohort-size", 2, "--local-steps", 2, "--jobs", 1, "--quiet"]
    code, _, errors = command("compare", *wild, *quick, "--device", "cpu", "--out", "c")
    assert code == 1
    (table,) = data_of(tmp_path / "c" / "report.html")["tables"]
    text = (tmp_path / "c" / "table.md").read_text()
    assert "(0 of 2 seeds)" in text
    for seed in (3, 4):
        (why,) = re.findall(rf"fedavg, seed {seed}: (.+)", errors)
        assert f"fedavg, seed {seed} failed: {why.rstrip('.')}." in table["notes"]
        assert f"fedavg, seed {seed} failed: " in text


def test_a_page_that_cannot_be_written_is_one_sentence(compared, command):
    """As on a read-only disk, its temporary file can be neither made nor removed."""
    code, _, errors = command("report", compared, "--out", f"{'a' * 250}.html")
    assert code == 2
    assert errors.endswith("a.html cannot be written (File name too long): choose another place with --out\n")
    code, _, errors = command("report", compared, "--out", "a" * 300)
    assert code == 2
    assert errors.endswith("aaa has a name that is too long for the disk: choose a shorter one\n")


def test_pictures_that_cannot_be_written_are_one_sentence(compared, command, tmp_path):
    words = ["report", compared, "--out", "page.html", "--plots", "shown", "--formats", "png"]
    assert command(*words)[0] == 0
    picture = min((tmp_path / "shown").iterdir())
    picture.unlink()
    picture.mkdir()  # can be neither written nor removed as a file
    code, _, errors = command(*words)
    assert code == 2
    assert "the pictures cannot be written in shown (" in errors
    assert errors.endswith("): choose another folder with --plots\n")
