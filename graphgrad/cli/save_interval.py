"""When a run is saved: the argument ``--save-every``."""

import math
import time

from ..errors import ArgumentError

DEFAULT = "5m"


class SaveInterval:
    """A number of steps, or of minutes, after which a run is saved.

    Parameters
    ----------
    text : str or None
        Such as ``500`` steps, or ``5m``, minutes. None means `DEFAULT`, and each epoch.
    done : int
        Steps that are saved already.

    Attributes
    ----------
    each_epoch : bool
        To be saved at the end of each epoch as well.

    Raises
    ------
    ArgumentError
        The text is neither.
    """

    def __init__(self, text: str | None, done: int = 0):
        self.each_epoch = text is None
        self._steps, self._seconds = _parse(text or DEFAULT)
        self._saved_steps, self._saved_at = done, time.monotonic()

    def is_due(self, steps: int) -> bool:
        """Whether to save a run that has taken so many steps."""
        if self._steps is None:
            return time.monotonic() - self._saved_at >= self._seconds
        # Multiples of the number, wherever the run was interrupted.
        return steps // self._steps > self._saved_steps // self._steps

    def saved(self, steps: int) -> None:
        """Be told that so many steps are saved."""
        self._saved_steps, self._saved_at = steps, time.monotonic()


def _parse(text: str) -> tuple[int | None, float]:
    """Steps and seconds of an interval; no steps where it is in minutes."""
    try:
        number = float(text.removesuffix("m")) if text.endswith("m") else int(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentError(
            f"--save-every {text}: give a number of steps, such as 500, or of minutes, such as 5m"
        )
    return (None, 60.0 * number) if isinstance(number, float) else (number, math.inf)
