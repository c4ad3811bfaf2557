"""What holds files or processes, and lets go of them where its context ends."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something to close: `with` does it, whatever happens inside."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
