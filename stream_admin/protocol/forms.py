"""Forms: what a field of the protocol may hold, said once, in its type, and enforced wherever it is made.

    @dataclass(frozen=True, slots=True)
    class Fence(Record):
        stream: StreamName                 # an Annotated type that carries its form
        epoch: EpochNumber

A Record checks itself when it is made, from Python or from JSON alike, so one that exists is valid. From
JSON, a field that is missing, unknown, of another type (`true` is no integer, `1.0` neither), too long or too
many is a ProtocolError that names it. A type without a limit (a bare `str`, `int` or `tuple`) is refused when
the class is first used: nothing from outside is without a bound.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, ClassVar, Self

from stream_admin.protocol.errors import ProtocolError

DOCUMENT_BYTES_MAX = 256 * 1024


class Form:
    """What one field may hold: `check` a Python value, `load` it from JSON, `dump` it to JSON."""

    def check(self, value: Any, where: str) -> None:
        raise NotImplementedError

    def load(self, value: Any, where: str) -> Any:
        """Return the Python value of a JSON value, checked."""
        self.check(value, where)
        return value

    def dump(self, value: Any) -> Any:
        return value


@dataclasses.dataclass(frozen=True)
class Text(Form):
    """A text of bounded length, of characters that a terminal and a log line survive."""

    length_max: int
    length_min: int = 0
    allowed: str = "printable text"
    pattern: re.Pattern[str] | None = None
    is_secret: bool = False
    is_allowed: Callable[[str], bool] | None = None

    def check(self, value: Any, where: str) -> None:
        if (
            type(value) is not str
            or not self.length_min <= len(value) <= self.length_max
            or not value.isprintable()
            or (self.pattern is not None and not self.pattern.fullmatch(value))
            or (self.is_allowed is not None and not self.is_allowed(value))
        ):
            allowed = f"{self.allowed} of {self.length_min} to {self.length_max} characters"
            raise ProtocolError(where, value, allowed, is_secret=self.is_secret)


@dataclasses.dataclass(frozen=True)
class Integer(Form):
    """An integer of a range, both ends included."""

    first: int
    last: int

    def check(self, value: Any, where: str) -> None:
        if type(value) is not int or not self.first <= value <= self.last:
            raise ProtocolError(where, value, f"an integer from {self.first} to {self.last}")


class Flag(Form):
    def check(self, value: Any, where: str) -> None:
        if type(value) is not bool:
            raise ProtocolError(where, value, "true or false")


@dataclasses.dataclass(frozen=True)
class Choice(Form):
    """One of an Enum's values; in JSON, its text."""

    choices: type[Enum]

    def check(self, value: Any, where: str) -> None:
        if type(value) is not self.choices:
            raise ProtocolError(where, value, self._allowed())

    def load(self, value: Any, where: str) -> Any:
        for choice in self.choices:
            if type(value) is str and choice.value == value:
                return choice
        raise ProtocolError(where, value, self._allowed())

    def dump(self, value: Any) -> Any:
        return value.value

    def _allowed(self) -> str:
        return "one of " + ", ".join(str(choice.value) for choice in self.choices)


@dataclasses.dataclass(frozen=True)
class Count:
    """How many items a tuple may have; and, for a set written as a tuple, that they stand in order.

    One set has then one spelling, which is what signing and comparing want.
    """

    most: int
    least: int = 0
    is_sorted_set: bool = False


@dataclasses.dataclass(frozen=True)
class Many(Form):
    item: Form
    count: Count

    def check(self, value: Any, where: str) -> None:
        if type(value) is not tuple:
            raise ProtocolError(where, value, "a tuple")
        self._check_count(value, where)
        for index, item in enumerate(value):
            self.item.check(item, f"{where}[{index}]")
        self._check_order(value, where)

    def load(self, value: Any, where: str) -> Any:
        if type(value) is not list:
            raise ProtocolError(where, value, "a list")
        self._check_count(value, where)
        items = tuple(self.item.load(item, f"{where}[{index}]") for index, item in enumerate(value))
        self._check_order(items, where)
        return items

    def dump(self, value: Any) -> Any:
        return [self.item.dump(item) for item in value]

    def _check_count(self, value: Any, where: str) -> None:
        if not self.count.least <= len(value) <= self.count.most:
            allowed = f"{self.count.least} to {self.count.most} items"
            raise ProtocolError(where, f"{len(value)} items", allowed)

    def _check_order(self, items: tuple[Any, ...], where: str) -> None:
        if self.count.is_sorted_set:
            for index in range(1, len(items)):
                if not items[index - 1] < items[index]:
                    allowed = "greater than the item before it: each once, in order"
                    raise ProtocolError(f"{where}[{index}]", items[index], allowed)


@dataclasses.dataclass(frozen=True)
class Maybe(Form):
    """A value or None. In JSON the field is there all the same, as null: silence is never a choice."""

    form: Form

    def check(self, value: Any, where: str) -> None:
        if value is not None:
            self.form.check(value, where)

    def load(self, value: Any, where: str) -> Any:
        return None if value is None else self.form.load(value, where)

    def dump(self, value: Any) -> Any:
        return None if value is None else self.form.dump(value)


@dataclasses.dataclass(frozen=True)
class Nested(Form):
    """A record inside a record; of several possible kinds, the `kind` field in JSON says which."""

    records: tuple[type[Record], ...]

    def check(self, value: Any, where: str) -> None:
        if type(value) not in self.records:
            raise ProtocolError(where, value, " or ".join(record.__name__ for record in self.records))

    def load(self, value: Any, where: str) -> Any:
        if len(self.records) == 1:
            return self.records[0].from_json(value, where)
        kind = _object(value, where).get("kind")
        for record in self.records:
            if type(kind) is str and kind == record.KIND:
                return record.from_json(value, where)
        raise ProtocolError(f"{where}.kind", kind, "one of " + ", ".join(str(r.KIND) for r in self.records))

    def dump(self, value: Any) -> Any:
        return value.to_json()


class Record:
    """A checked, frozen dataclass with one JSON form. Derive, and decorate with dataclass(frozen, slots)."""

    __slots__ = ()
    KIND: ClassVar[str | None] = None  # where records of several kinds share a place, what tells them apart

    def __post_init__(self) -> None:
        for name, form in _forms_of(type(self)).items():
            form.check(getattr(self, name), name)
        self.check_relations()

    def check_relations(self) -> None:
        """Insist on what no single field can say; derived records override it."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that json.dumps takes."""
        document: dict[str, Any] = {} if self.KIND is None else {"kind": self.KIND}
        for name, form in _forms_of(type(self)).items():
            document[name] = form.dump(getattr(self, name))
        return document

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Return the record that a parsed JSON object says, or raise ProtocolError with the field's path."""
        forms = _forms_of(cls)
        document = _object(value, where or cls.__name__)
        prefix = f"{where}." if where else ""
        expected = set(forms) | ({"kind"} if cls.KIND is not None else set())
        for name in document:
            if name not in expected:
                raise ProtocolError(f"{where or cls.__name__}", name, "without unknown fields")
        for name in sorted(expected):
            if name not in document:
                raise ProtocolError(f"{prefix}{name}", None, "given")
        if cls.KIND is not None and document["kind"] != cls.KIND:
            raise ProtocolError(f"{prefix}kind", document["kind"], repr(cls.KIND))
        values = {name: form.load(document[name], f"{prefix}{name}") for name, form in forms.items()}
        try:
            return cls(**values)
        except ProtocolError as error:  # a relation: the record does not know where it stands, we do
            if not where:
                raise
            error.field = f"{where}.{error.field}"
            error.args = (f"{where}.{error.args[0]}",)
            raise

    def encode(self) -> bytes:
        """Return the one byte sequence for this record: sorted keys, no spaces, ASCII."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode(
            "ascii"
        )

    @classmethod
    def decode(cls, document: bytes, bytes_max: int = DOCUMENT_BYTES_MAX) -> Self:
        """Return the record that a JSON document says; the document need not be in the canonical form."""
        return cls.from_json(parse_json(document, cls.__name__, bytes_max))


def parse_json(document: bytes, where: str, bytes_max: int = DOCUMENT_BYTES_MAX) -> Any:
    """Parse JSON strictly: bounded, UTF-8, no key twice, no NaN; what is wrong with it is a ProtocolError."""
    if len(document) > bytes_max:
        raise ProtocolError(where, f"{len(document)} bytes", f"at most {bytes_max} bytes")

    def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(pairs)
        if len(parsed) != len(pairs):
            raise ProtocolError(where, "a field given twice", "JSON with each field once")
        return parsed

    def refuse_constant(name: str) -> Any:
        raise ProtocolError(where, name, "JSON without NaN and infinities")

    try:
        return json.loads(
            document.decode("utf-8"), object_pairs_hook=pairs_once, parse_constant=refuse_constant
        )
    # Digits beyond Python's own limit are a ValueError, brackets beyond its stack a RecursionError.
    except (ValueError, RecursionError) as error:
        raise ProtocolError(where, type(error).__name__, "well-formed JSON in UTF-8") from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise ProtocolError(where, value, "a JSON object")
    return value


_forms_by_record: dict[type[Record], dict[str, Form]] = {}


def _forms_of(record: type[Record]) -> dict[str, Form]:
    """Return the forms of a record's fields; worked out when the first one is made."""
    known = _forms_by_record.get(record)
    if known is not None:
        return known
    hints = typing.get_type_hints(record, include_extras=True)
    assert dataclasses.is_dataclass(record)
    forms = {field.name: _form_of(hints[field.name], field.name) for field in dataclasses.fields(record)}
    _forms_by_record[record] = forms
    return forms


def _form_of(hint: Any, name: str) -> Form:
    """Return the form that a type says; a type that says none, or sets no limit, is our own bug."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for extra in arguments[1:]:
            if isinstance(extra, Form):
                return extra
            if isinstance(extra, Count):
                item, ellipsis = typing.get_args(arguments[0])
                assert ellipsis is ..., f"{name}: only tuples of one type are counted"
                return Many(_form_of(item, name), extra)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        if all(isinstance(member, type) and issubclass(member, Record) for member in members):
            form: Form = Nested(tuple(members))
        else:
            assert len(members) == 1, f"{name}: a union must be of records, or of one type and None"
            form = _form_of(members[0], name)
        return Maybe(form) if len(members) < len(arguments) else form
    if hint is bool:
        return Flag()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Choice(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return Nested((hint,))
    raise AssertionError(f"{name}: {hint!r} sets no limit; annotate it with a form")
