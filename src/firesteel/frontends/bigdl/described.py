"""Descriptions: a class whose annotations are its settings, checked when it is made."""

from __future__ import annotations

import dataclasses
from typing import Any, dataclass_transform

from firesteel.core import registry
from firesteel.core.schedules import check_settings, wrong_setting

__all__ = ["DTYPES", "Described", "bench"]

DTYPES = {"float": "float32", "double": "float64"}


def bench() -> Any:
    """The workshop that makes torch modules of descriptions; loads torch."""
    return registry.framework("bigdl")


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class _Declared:
    """Makes every class below a dataclass; two objects are equal when they are the same."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(eq=False, repr=False)(cls)


class Described(_Declared):
    """Something with settings, and with BigDL's ``bigdl_type``: ``"float"`` (float32) or ``"double"`` (float64)."""

    bigdl_type: str = dataclasses.field(default="float", kw_only=True)

    def __post_init__(self) -> None:
        if self.bigdl_type not in DTYPES:
            raise wrong_setting(self, "bigdl_type", '"float" or "double"', self.bigdl_type)
        check_settings(self)

    @property
    def dtype(self) -> str:
        """NumPy's name of the numbers that it computes with."""
        return DTYPES[self.bigdl_type]

    def settings(self) -> dict[str, Any]:
        """Settings by name, as they are."""
        return {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "bigdl_type"
        }

    def __repr__(self) -> str:
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.default is dataclasses.MISSING or getattr(self, field.name) is not field.default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"
