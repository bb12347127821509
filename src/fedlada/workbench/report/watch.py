"""The page of a folder of runs that may still be growing, served to this machine alone."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedlada.runs.metrics import DamagedMetrics
from fedlada.workbench.report.listing import KnownRun
from fedlada.workbench.report.page import render, shared_payload
from fedlada.workbench.report.payload import rows_per_run, run_payload
from fedlada.workbench.report.records import StoredFiles, find_runs, named, read_files
from fedlada.workbench.report.stored import read_charts, read_command, read_notes, read_tables

HOST = "127.0.0.1"
FILES = ("config.json", "metrics.jsonl", "clients.json")


@dataclass(frozen=True)
class Answer:
    """Served content, and a tag that changes with it."""

    content: bytes
    kind: str = "application/json"

    @property
    def version(self) -> str:
        """Changes with the content."""
        return hashlib.sha256(self.content).hexdigest()[:20]


NOTHING = Answer(b"")


class LiveReport:
    """The current data of a folder's page; only changed files are read again."""

    def __init__(self, folder: Path, title: str) -> None:
        self.folder = folder
        self.title = title
        self.page = Answer(
            render(title, {"live": True}, live=True).encode("utf-8", "replace"), "text/html; charset=utf-8"
        )
        self._lock = threading.Lock()
        self._files: dict[KnownRun, tuple[Any, StoredFiles]] = {}
        self._made: dict[str, tuple[Any, Answer]] = {}
        self._damaged: list[str] = []

    def index(self) -> Answer:
        """The content of the page besides its runs, and which version of each run there is."""
        with self._lock:
            notes = [] if self.folder.is_dir() else [f"The folder {self.folder} is no longer there."]
            runs: dict[str, Answer] = {}
            try:
                runs = self._refresh()
                notes += [*self._damaged, *read_notes(self.folder)]
                tables, charts = read_tables(self.folder), read_charts(self.folder)
            except ValueError as error:
                tables, charts, notes = [], [], [*notes, str(error)]
            data = shared_payload(self.title, tables, charts, notes, read_command(self.folder))
            data["runs"] = [{"id": name, "version": answer.version} for name, answer in runs.items()]
        return _json(data)

    def run(self, name: str) -> Answer | None:
        """One run as it was when the index was last asked for; None where there is none of that name."""
        with self._lock:
            known = self._made.get(name)
        return None if known is None else known[1]

    def _refresh(self) -> dict[str, Answer]:
        files, signatures, self._damaged = {}, {}, []
        for run in find_runs(self.folder):
            signature = tuple(_signature(run.folder / name) for name in FILES)
            known = self._files.get(run)
            try:
                files[run] = known if known is not None and known[0] == signature else (signature, read_files(run))
            except DamagedMetrics as error:
                self._damaged.append(str(error))
                continue
            except (ValueError, OSError):
                continue  # being written, or deleted since it was found: the next answer has it
            signatures[run] = signature
        self._files = files
        room = rows_per_run(len(files))
        made = {}
        for record, run in zip(named([stored for _, stored in files.values()]), files, strict=True):
            name = hashlib.sha256(str(run.folder).encode("utf-8", "surrogateescape")).hexdigest()[:20]
            key = (signatures[run], run, record.label, record.group, room)
            made[name] = self._made.get(name, (None, NOTHING))
            if made[name][0] != key:
                made[name] = key, _json(run_payload(record, room))
        self._made = made
        return {name: answer for name, (_, answer) in made.items()}


def serve(report: LiveReport, port: int) -> ThreadingHTTPServer:
    """A server of the page and its data on this machine; `serve_forever` starts it."""
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(report))
    except OSError as error:
        raise ValueError(f"port {port} cannot be used: {error.strerror or error}; --port 0 takes a free one") from None
    server.daemon_threads = True
    return server


def _handler(report: LiveReport) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves the page and its data, and no files."""

        server_version, sys_version = "fedlada", ""
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            # A foreign page whose name was made to resolve to here (DNS rebinding) still sends its own host name.
            assert isinstance(self.server, ThreadingHTTPServer)
            port = self.server.server_port
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                return self.refuse(HTTPStatus.MISDIRECTED_REQUEST)
            answer = self.find(self.path)
            if answer is None:
                return self.refuse(HTTPStatus.NOT_FOUND)
            tag = f'"{answer.version}"'
            if self.headers.get("If-None-Match") == tag:
                return self.reply(HTTPStatus.NOT_MODIFIED, Answer(b"", answer.kind), tag)
            return self.reply(HTTPStatus.OK, answer, tag)

        do_HEAD = do_GET  # noqa: N815

        def find(self, path: str) -> Answer | None:
            """The answer at a path."""
            if path == "/":
                return report.page
            if path == "/data":
                return report.index()
            return report.run(path.removeprefix("/run/")) if path.startswith("/run/") else None

        def refuse(self, status: HTTPStatus) -> None:
            """Refuse, without details."""
            self.reply(status, Answer(f"{status.phrase}\n".encode(), "text/plain; charset=utf-8"), None)

        def reply(self, status: HTTPStatus, answer: Answer, tag: str | None) -> None:
            """Send an answer with headers that keep it between this server and this page."""
            self.send_response(status)
            headers = {
                "Content-Type": answer.kind,
                "Content-Length": str(len(answer.content)),
                "Cache-Control": "no-cache, private",
                "Content-Security-Policy": "frame-ancestors 'none'",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
            }
            for name, value in {**headers, **({"ETag": tag} if tag else {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        def handle_one_request(self) -> None:
            """A reader who has closed the page is no error."""
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: the terminal shows the address and nothing else."""

    return Handler


def _json(data: Any) -> Answer:
    return Answer(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
