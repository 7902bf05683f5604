"""Arrays in results of units (`moefabric.api.units`), which JSON has as text."""

from base64 import b64decode, b64encode
from io import BytesIO
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

Scalar = TypeVar("Scalar", bound=np.generic)


def _text(array: NDArray[Any]) -> str:
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return b64encode(file.getvalue()).decode()


def _array(text: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(BytesIO(b64decode(text)), allow_pickle=False)
    return array


Array = Annotated[NDArray[Scalar], PlainValidator(_array), PlainSerializer(_text)]
"""An array of any shape."""
