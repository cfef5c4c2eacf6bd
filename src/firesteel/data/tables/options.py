"""Spark's own reader options: which there are, and which of them only choose files.

Spark takes any option and forgets those that it does not know, so a misspelt one would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.core.errors import PlanError

__all__ = ["check_engine", "of_files", "of_pandas", "of_spark"]

_FILES = {
    "basepath",
    "ignorecorruptfiles",
    "ignoremissingfiles",
    "modifiedafter",
    "modifiedbefore",
    "pathglobfilter",
    "recursivefilelookup",
}
_TEXT = {
    "charset",
    "columnnameofcorruptrecord",
    "dateformat",
    "enabledatetimeparsingfallback",
    "encoding",
    "linesep",
    "locale",
    "mode",
    "multiline",
    "samplingratio",
    "schema",
    "timestampformat",
    "timestampntzformat",
    "timezone",
}
_CSV = {
    "chartoescapequoteescaping",
    "delimiter",
    "emptyvalue",
    "enforceschema",
    "escape",
    "ignoreleadingwhitespace",
    "ignoretrailingwhitespace",
    "inferschema",
    "maxcharspercolumn",
    "maxcolumns",
    "nanvalue",
    "negativeinf",
    "nullvalue",
    "positiveinf",
    "preferdate",
    "quote",
    "unescapedquotehandling",
}
_JSON = {
    "allowbackslashescapinganycharacter",
    "allowcomments",
    "allownonnumericnumbers",
    "allownumericleadingzeros",
    "allowsinglequotes",
    "allowunquotedcontrolchars",
    "allowunquotedfieldnames",
    "dropfieldifallnull",
    "infertimestamp",
    "prefersdecimal",
    "primitivesasstring",
}
_PARQUET = {"datetimerebasemode", "int96rebasemode", "mergeschema"}

_OF_FORMAT = {"csv": _FILES | _TEXT | _CSV, "json": _FILES | _TEXT | _JSON, "parquet": _FILES | _PARQUET}


def check_engine(reader: str, engine: Any) -> None:
    """Refuse what is no engine."""
    if engine not in ("spark", "pandas"):
        raise PlanError(f'{reader}: engine must be "spark" or "pandas", found {engine!r}')


def of_spark(form: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not ``None``; Spark's reader of ``form`` (csv, json, parquet) must know each."""
    for name in options:
        if name.lower() not in _OF_FORMAT[form]:
            raise PlanError(
                f'read_{form}: {name!r} is no option of Spark\'s reader; engine="pandas" takes what '
                f"pandas.read_{form} takes"
            )
    return {name: value for name, value in options.items() if value is not None}


def of_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that choose files, whatever the format."""
    return {name: value for name, value in options.items() if name.lower() in _FILES}


def of_pandas(form: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, which pandas' reader must have."""
    import inspect

    import pandas as pd

    parameters = inspect.signature(getattr(pd, f"read_{form}")).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for name in options:
        if name not in parameters and not takes_any:
            raise PlanError(f'read_{form}: {name!r} is no option of pandas.read_{form}; engine="spark" takes Spark\'s')
        if name in ("chunksize", "iterator") and options[name]:
            raise PlanError(f"read_{form}: {name} makes pieces of a file, which shards are already; leave it out")
    return dict(options)


def is_true(options: Mapping[str, Any], wanted: str) -> bool:
    """Whether an option of Spark's, whose names have no case, is switched on."""
    return any(str(value).lower() == "true" for name, value in options.items() if name.lower() == wanted.lower())


def without(options: Mapping[str, Any], *unwanted: str) -> dict[str, Any]:
    """The options of Spark's but these."""
    low = {name.lower() for name in unwanted}
    return {name: value for name, value in options.items() if name.lower() not in low}
