"""Objects that the end of a `with` closes."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """An object that is closed when its `with` is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds."""
