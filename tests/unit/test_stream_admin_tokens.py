"""Tokens: typos are told apart, the dead ones open nothing, and no text of ours ever shows one."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_admin.protocol.errors import ProtocolError
from stream_admin.store import authenticate
from stream_admin.tokens import PREFIX, TOKEN_LENGTH, Token, TokenRecord, TokenRefused
from tests.unit.stream_admin_scene import NOW_NS, WHY, store_with_stream

HOUR_NS = 3_600 * 10**9


def record_of(token: Token, label: str = "laptop") -> TokenRecord:
    return TokenRecord.of(token, "desk-7", label, now_ns=NOW_NS, expires_at_ns=NOW_NS + HOUR_NS)


def test_tokens_differ_and_come_back_from_their_text() -> None:
    texts = {Token.generate().reveal() for _ in range(100)}
    assert len(texts) == 100
    for text in texts:
        assert len(text) == TOKEN_LENGTH
        assert text.startswith(PREFIX)
        assert Token(text).reveal() == text
        assert Token(text) == Token(text)
        assert Token(text) != Token.generate()


def test_every_single_typing_error_is_noticed_by_the_checksum() -> None:
    text = Token.generate().reveal()
    for index in range(len(PREFIX), TOKEN_LENGTH):
        other = "b" if text[index] == "a" else "a"
        with pytest.raises(TokenRefused, match="mistyped"):
            Token(text[:index] + other + text[index + 1 :])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[:-1], "characters more"),
        (lambda text: text + "a", "characters more"),
        (lambda text: "xx_" + text[3:], "characters more"),
        (lambda text: text[:3] + text[3:].upper(), "no characters but"),
        (lambda text: text[:-1] + "1", "no characters but"),
        (lambda text: text[:-1] + "é", "no characters but"),
        (lambda text: text[:-1] + "=", "no characters but"),
        (lambda text: "", "characters more"),
        (lambda text: text * 100_000, "characters more"),
    ],
)
def test_what_is_not_a_token_is_refused_without_quoting_it(damage: Callable[[str], str], why: str) -> None:
    text = damage(Token.generate().reveal())
    with pytest.raises(TokenRefused, match=why) as caught:
        Token(text)
    assert len(str(caught.value)) < 200
    assert text[3:20] not in str(caught.value) or not text[3:20]


def test_token_shows_in_no_text_but_its_own(caplog: pytest.LogCaptureFixture) -> None:
    token = Token.generate()
    record = record_of(token)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r %s", token, token, record)
    try:
        record.check(Token.generate(), NOW_NS)
    except TokenRefused as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True).format()
        story = "".join(shown)
    else:
        pytest.fail("another token was accepted")
    secrets = (token.reveal(), token.reveal()[10:30])  # only now: the story above tells the locals
    for text in (repr(token), str(token), f"{token}", repr(record), caplog.text, story, repr([token])):
        assert all(secret not in text for secret in secrets)
        assert record.digest.hex() not in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(token)
    with pytest.raises(TypeError, match="not pickled"):
        copy.copy(token)
    with pytest.raises(TypeError, match="no key"):
        hash(token)


def test_token_opens_until_it_expires_is_revoked_or_its_principal_is_disabled(tmp_path: Path) -> None:
    with store_with_stream(tmp_path / "db" / "store") as store:
        token = Token.generate()
        with pytest.raises(TokenRefused, match="not known"):
            authenticate(store, token, NOW_NS)
        store.add_token(record_of(token), WHY)
        assert authenticate(store, token, NOW_NS) == "desk-7"
        assert authenticate(store, token, NOW_NS + HOUR_NS - 1) == "desk-7"
        with pytest.raises(TokenRefused, match="expired"):
            authenticate(store, token, NOW_NS + HOUR_NS)
        store.set_principal_enabled("desk-7", False, WHY)
        with pytest.raises(TokenRefused, match="disabled"):
            authenticate(store, token, NOW_NS)
        store.set_principal_enabled("desk-7", True, WHY)
        store.revoke_token(record_of(token).token_id, WHY)
        store.revoke_token(record_of(token).token_id, WHY)
        with pytest.raises(TokenRefused, match="revoked"):
            authenticate(store, token, NOW_NS)


def test_token_is_nowhere_in_the_files_of_the_store(tmp_path: Path) -> None:
    token = Token.generate()
    with store_with_stream(tmp_path / "db" / "store") as store:
        store.add_token(record_of(token), WHY)
        content = b"".join(path.read_bytes() for path in (tmp_path / "db").iterdir())
    assert token.digest() in content
    assert token.reveal().encode() not in content


def test_token_that_would_be_dead_at_birth_is_refused() -> None:
    with pytest.raises(TokenRefused, match="would have expired"):
        TokenRecord.of(Token.generate(), "desk-7", "x", now_ns=NOW_NS, expires_at_ns=NOW_NS)
    with pytest.raises(ProtocolError, match="label"):
        record_of(Token.generate(), label="no spaces please")
