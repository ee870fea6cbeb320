"""How much of the machine others used while one of our programs ran: it says whether its speed can be trusted."""

import time

import psutil

# Waiting, and time that is counted under user and nice already.
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")


class Watch:
    """Watches from its making on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._others()

    def cpus(self, ours: float) -> float | None:
        """Processors that others kept busy since, on average; None where the system does not tell.

        Others are all programs but this one, and what a hypervisor took away. ours: processor seconds, of user and
        system, of the program that ran for us.
        """
        after = self._others()
        if self._before is None or after is None:
            return None
        return max(0.0, (after - self._before - ours) / (time.monotonic() - self._began))

    @staticmethod
    def _others() -> float | None:
        """Processor seconds of all programs but this one."""
        try:
            times = psutil.cpu_times()
        except (OSError, psutil.Error):
            return None
        return float(sum(times) - sum(getattr(times, name, 0.0) for name in _NOT_BUSY) - time.process_time())
