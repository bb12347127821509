"""The launch of a kernel, and compilation ahead of it: many kernels at once instead of each at its first launch."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

import torch
from torch import Tensor

EACH = 3
"""Kernels that one process compiles."""
LONGEST = 60.0
"""Seconds until a process is given up."""
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

Launch = tuple[Any, Sequence[int], Sequence[Any], dict[str, Any]]
"""A kernel, its grid, its arguments and its constants."""


class Ahead:
    """Compiles what would be launched; kernels whose arguments have the same types are compiled once.

    The compiler holds Python's lock, so threads would wait for each other. Forks of this process compile instead, leave
    the kernels in Triton's cache on disk, and touch no GPU. What they leave out is compiled when it is loaded.
    """

    def __init__(self) -> None:
        self.wanted: dict[Any, Launch] = {}
        self.waiting: list[Launch] = []
        self.processes: list[tuple[int, float]] = []
        """Those that were started, and when each is given up."""
        self.most = len(os.sched_getaffinity(0))

    def add(self, kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: dict[str, Any]) -> None:
        """Compile a kernel for arguments like these, if that has not begun."""
        counts = [parameter.num for parameter in getattr(kernel, "params", ()) if parameter.do_not_specialize]
        kinds = (None if place in counts else _kind(one) for place, one in enumerate(args))
        key = (kernel, *kinds, *sorted(constants.items()))
        if key not in self.wanted:
            self.wanted[key] = (kernel, grid, args, constants)
            self.waiting.append(self.wanted[key])
            if len(self.waiting) == EACH:
                self.start()

    def start(self) -> None:
        """Begin with all that waits."""
        if not self.waiting:
            return
        if len(self.processes) >= self.most:
            self._wait()
        work, self.waiting = self.waiting, []
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # type: ignore[no-untyped-call]
        # Without signals: Python's handlers would run in the fork too. There may be no more processes.
        with suppress(OSError), _held_back() as before:
            self.processes.append((_fork(device, work, before), time.monotonic() + LONGEST))

    def finish(self) -> None:
        """Wait for all and load them; a kernel that cannot be compiled says so at its launch."""
        self.start()
        while self.processes:
            self._wait()
        for one in self.wanted.values():
            _load(*one)

    def cancel(self) -> None:
        """End those under way."""
        for process, _ in self.processes:
            _end(process)

    def _wait(self) -> None:
        """Wait for the first."""
        process, until = self.processes[0]
        with suppress(ChildProcessError):  # somebody else has waited for it
            while os.waitpid(process, os.WNOHANG)[0] == 0:
                if time.monotonic() > until:
                    _end(process)
                time.sleep(0.005)
        del self.processes[0]


_ahead: dict[int, Ahead] = {}
"""By stream, which autograd's own thread keeps; another thread that trains on another stream goes on as usual."""


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Inside, kernels of the current stream are compiled in parallel and not launched: their outputs are zeros."""
    stream = _stream()
    ahead = _ahead[stream] = Ahead()
    try:
        yield
        ahead.finish()
    finally:
        del _ahead[stream]
        ahead.cancel()  # after an error


def launch(kernel: Any, grid: Sequence[int], *args: Any, outputs: Sequence[Tensor | None], **constants: Any) -> None:
    """Launch a kernel that writes all of `outputs`, which are among its arguments."""
    ahead = _ahead.get(_stream()) if _ahead else None
    if ahead is None:
        kernel[tuple(grid)](*args, **constants)
        return
    ahead.add(kernel, tuple(grid), args, constants)
    for output in outputs:
        if output is not None:
            output.zero_()


def start_compiling() -> None:
    """Begin with all kernels that wait, before other work that takes long."""
    if is_ahead():
        _ahead[_stream()].start()


def is_ahead() -> bool:
    """Whether kernels are compiled ahead now, not launched."""
    return bool(_ahead) and _stream() in _ahead


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


class _GpuOf:
    """The active driver as a fork may use it: what it knows of the GPU, without asking it."""

    def __init__(self, driver: Any, device: int) -> None:
        self._driver, self._device, self._target = driver, device, driver.get_current_target()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


@contextmanager
def _held_back() -> Iterator[Iterable[int]]:
    """Hold back what ends a process; yields the signals that were held back before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(device: int, work: Sequence[Launch], signals: Iterable[int]) -> int:
    """A process that compiles these kernels, and leaves them in Triton's cache; `signals` are held back in it."""
    from triton.runtime import driver

    gpu = _GpuOf(driver.active, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads hold nothing that the compiler needs
        process = os.fork()
    if process == 0:
        _compile(gpu, work, signals)
    return process


def _compile(gpu: _GpuOf, work: Sequence[Launch], signals: Iterable[int]) -> NoReturn:
    """In the fork, which ends here."""
    from triton.runtime import driver

    code = 1
    try:
        gc.disable()  # frees no tensor of the GPU
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        driver.set_active(gpu)
        for kernel, grid, args, constants in work:
            compiled = kernel.warmup(*args, grid=grid, **constants)
            gpu.launcher_cls(compiled.src, compiled.metadata)  # some versions build it by a C compiler
        code = 0
    finally:
        os._exit(code)


def _end(process: int) -> None:
    """End a process, unless it has ended."""
    with suppress(ChildProcessError, ProcessLookupError):
        if os.waitpid(process, os.WNOHANG)[0] == 0:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _load(kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: dict[str, Any]) -> None:
    with suppress(Exception), torch.cuda.device(args[0].device) if args[0].is_cuda else nullcontext():
        kernel.warmup(*args, grid=grid, **constants)._init_handles()


def _kind(argument: Any) -> Any:
    """The properties that a kernel's code may depend on: type, alignment, and whether a number is one."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    return (argument == 1, argument % 16 == 0) if isinstance(argument, int) else type(argument)
