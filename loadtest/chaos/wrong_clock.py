"""A wrong clock for single processes: a preloaded library that adds an offset from a file to the time of day."""

from __future__ import annotations

import copy
import struct
import subprocess
import sys
import time
from pathlib import Path

from loadtest.errors import LoadTestError
from loadtest.preloaded import compile_preloaded

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile int64_t *ahead_s;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("WRONG_CLOCK"), O_RDONLY);
    ahead_s = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, fd, 0);
    if (ahead_s == MAP_FAILED) abort();
    real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *to) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to) *to = exact.tv_sec;
    return exact.tv_sec;
}
"""


class WrongClock:
    """A wrong clock for processes with this environment. Monotonic clocks and other processes are not affected."""

    def __init__(self, folder: Path, ahead_s: int) -> None:
        self._file = folder / "ahead"
        self._library = folder / "wrong_clock.so"
        self.set(ahead_s)
        source = folder / "wrong_clock.c"
        source.write_text(SOURCE)
        compile_preloaded(source, self._library)
        if abs(self._seen() - time.time() - ahead_s) > 60:
            raise LoadTestError("a preloaded library does not change what Python takes for the time")

    def another(self, name: str) -> WrongClock:
        """A second clock for another process; without an offset at first."""
        clock = copy.copy(self)
        clock._file = self._file.with_name(f"ahead-{name}")
        clock.set(0)
        return clock

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WRONG_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """Set the clock ahead by so many seconds; negative: behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", ahead_s))

    def _seen(self) -> float:
        program = [sys.executable, "-c", "import time; print(time.time())"]
        return float(subprocess.run(program, env=self.environment, capture_output=True, check=True, text=True).stdout)
