"""What every value on the wire is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Label = bool | int | float | str
"""One cell of a column; JSON types are kept apart, so 1, true and "1" are three labels."""


class Model(BaseModel):
    """Closed and frozen; attribute docstrings are the API documentation."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
