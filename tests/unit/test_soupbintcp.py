"""SoupBinTCP machines, both ends, in made-up time and without sockets."""

from __future__ import annotations

import itertools

import pytest

from feeds.errors import ConfigError, FeedError, IllegalTransition
from feeds.message_store import MESSAGE_BYTES_MAX, MemoryStore
from feeds.soupbintcp import (
    Accounts,
    ClientConnection,
    Closed,
    CloseReason,
    DebugText,
    Event,
    LoginAccepted,
    LoginRejected,
    LoginRequest,
    Move,
    PacketError,
    PacketType,
    RejectReason,
    SequencedData,
    ServerConnection,
    Settings,
    State,
    StoredSessions,
    UnsequencedData,
    protocol,
)
from feeds.soupbintcp.client import CLIENT_TRANSITIONS
from feeds.soupbintcp.connection import Connection
from feeds.soupbintcp.server import CHUNK_BYTES, SERVER_TRANSITIONS

SECOND = 1_000_000_000
PHRASE = "hush-hush"

AT_ONCE = Settings(rejection_delay_ns=0)


def make_store(*messages: bytes, session: str = "DAY1") -> MemoryStore:
    store = MemoryStore(session)
    for message in messages:
        store.append(message)
    return store


def make_server(store: MemoryStore, settings: Settings | None = None, now_ns: int = 0) -> ServerConnection:
    return ServerConnection(Accounts({"trader": PHRASE}), StoredSessions(store), now_ns, settings)


def login_bytes(session: str = "", sequence: int = 1, password: str = PHRASE) -> bytes:
    return protocol.encode_login_request(LoginRequest("trader", password, session, sequence))


def accepted_bytes(session: str = "DAY1", sequence: int = 1) -> bytes:
    return protocol.encode_login_accepted(session, sequence)


def streaming_server(store: MemoryStore, settings: Settings | None = None) -> ServerConnection:
    server = make_server(store, settings)
    server.on_bytes(login_bytes(), 0)
    assert server.state is State.STREAMING
    server.take_output(0)
    return server


def streaming_client(sequence: int = 1, settings: Settings | None = None) -> ClientConnection:
    client = ClientConnection(LoginRequest("trader", PHRASE, "", sequence), 0, settings)
    client.login(0)
    client.take_output(0)
    client.on_bytes(accepted_bytes(sequence=sequence or 1), 0)
    assert client.state is State.STREAMING
    return client


def packets_in(data: bytes) -> list[tuple[str, bytes]]:
    """Split bytes into (type, payload), too plainly to share a mistake with the code under test."""
    packets = []
    while data:
        length = data[0] * 256 + data[1]
        packets.append((chr(data[2]), data[3 : 2 + length]))
        data = data[2 + length :]
    return packets


def closed_of(events: list[Event]) -> Closed:
    assert isinstance(events[-1], Closed), events
    return events[-1]


def sequenced_of(events: list[Event]) -> dict[int, bytes]:
    return {
        event.first_sequence + index: message
        for event in events
        if isinstance(event, SequencedData)
        for index, message in enumerate(event.block)
    }


# The bytes.


def test_login_request_has_the_bytes_of_the_specification() -> None:
    assert login_bytes("DAY1", 42) == (
        b"\x00\x2fL" + b"trader" + b"hush-hush " + b"      DAY1" + b"                  42"
    )


def test_login_accepted_and_rejected_have_the_bytes_of_the_specification() -> None:
    assert accepted_bytes("DAY1", 7) == b"\x00\x1fA" + b"      DAY1" + b"                   7"
    assert protocol.encode_login_rejected(RejectReason.NOT_AUTHORISED) == b"\x00\x02JA"
    assert protocol.encode_login_rejected(RejectReason.SESSION_NOT_AVAILABLE) == b"\x00\x02JS"


def test_bytes_of_a_real_capture_are_what_we_write() -> None:
    assert protocol.packet(PacketType.SERVER_HEARTBEAT) == bytes.fromhex("000148")
    assert protocol.packet(PacketType.CLIENT_HEARTBEAT) == bytes.fromhex("000152")
    assert protocol.packet(PacketType.SEQUENCED_DATA, bytes(18))[:3] == bytes.fromhex("001353")
    assert protocol.packet(PacketType.UNSEQUENCED_DATA, bytes(9))[:3] == bytes.fromhex("000a55")


@pytest.mark.parametrize(
    "session, sequence",
    [
        (b"DAY1      ", b"42                  "),
        (b"      DAY1", b"                  42"),
        (b"  DAY1    ", b"        42          "),
        (b"DAY1\x00\x00\x00\x00\x00\x00", b"42" + bytes(18)),
        (b"DAY1      ", b"00000000000000000042"),
    ],
)
def test_padding_on_either_side_is_understood(session: bytes, sequence: bytes) -> None:
    request = protocol.decode_login_request(b"trader" + b"hush-hush " + session + sequence)
    assert (request.session, request.sequence) == ("DAY1", 42)
    assert protocol.decode_login_accepted(session + sequence) == ("DAY1", 42)


@pytest.mark.parametrize(
    "number", [b"", b"-1", b"+1", b"1_0", b"1 0", b"0x1", b"1.0", "\u0661".encode(), b"9" * 20]
)
def test_a_number_that_is_not_digits_or_too_large_is_refused(number: bytes) -> None:
    with pytest.raises(PacketError, match="requested sequence must be"):
        protocol.decode_number("requested sequence", number.ljust(20))


@pytest.mark.parametrize(
    "username, password, session, sequence",
    [
        ("toolong", "x", "", 1),
        ("trader", "12345678901", "", 1),
        ("trader", "p\u00e4ss", "", 1),
        ("trader", "x", "12345678901", 1),
        (" x", "x", "", 1),
        ("trader", "x", "", -1),
        ("trader", "x", "", 2**64),
    ],
)
def test_a_login_that_does_not_fit_its_fields_is_refused_before_it_is_sent(
    username: str, password: str, session: str, sequence: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        LoginRequest(username, password, session, sequence)
    assert len(password) == 1 or password not in str(caught.value)


def test_no_packet_is_made_of_a_payload_that_its_length_cannot_express() -> None:
    assert len(protocol.packet(PacketType.SEQUENCED_DATA, bytes(MESSAGE_BYTES_MAX))) == 65_537
    with pytest.raises(ConfigError, match="at most 65534 bytes, was 65535"):
        protocol.packet(PacketType.SEQUENCED_DATA, bytes(MESSAGE_BYTES_MAX + 1))


# Logging in.


def test_a_client_logs_in_and_receives_the_session_from_the_start() -> None:
    server = make_server(make_store(b"one", b"two"))
    assert server.on_bytes(login_bytes(), 0) == [LoginAccepted("trader", "DAY1", 1, 1)]
    assert packets_in(server.take_output(0)) == [
        ("A", b"      DAY1" + b"1".rjust(20)),
        ("S", b"one"),
        ("S", b"two"),
    ]


def test_a_client_resumes_at_the_number_it_asks_for() -> None:
    server = make_server(make_store(b"one", b"two", b"three"))
    server.on_bytes(login_bytes("DAY1", 3), 0)
    assert packets_in(server.take_output(0))[1:] == [("S", b"three")]
    assert server.next_sequence == 4


def test_sequence_zero_starts_with_the_next_message() -> None:
    store = make_store(b"one", b"two")
    server = make_server(store)
    assert server.on_bytes(login_bytes(sequence=0), 0) == [LoginAccepted("trader", "DAY1", 0, 3)]
    store.append(b"three")
    server.on_messages(1)
    assert packets_in(server.take_output(1))[1:] == [("S", b"three")]


def test_a_client_that_has_everything_may_resume_at_the_next_number() -> None:
    server = make_server(make_store(b"one"))
    assert server.on_bytes(login_bytes(sequence=2), 0) == [LoginAccepted("trader", "DAY1", 2, 2)]


@pytest.mark.parametrize("session, sequence", [("DAY2", 1), ("", 4), ("DAY1", 2**64 - 1)])
def test_an_unknown_session_or_number_is_rejected_with_s(session: str, sequence: int) -> None:
    server = make_server(make_store(b"one", b"two"), AT_ONCE)
    events = server.on_bytes(login_bytes(session, sequence), 0)
    assert isinstance(events[0], LoginRejected)
    assert events[0].reason is RejectReason.SESSION_NOT_AVAILABLE
    assert closed_of(events).reason is CloseReason.LOGIN_REJECTED
    assert server.take_output(0) == b"\x00\x02JS"
    assert server.is_drained


@pytest.mark.parametrize(
    "username, password", [("trader", "wrong"), ("nobody", PHRASE), ("", ""), ("trader", "")]
)
def test_a_wrong_password_and_an_unknown_name_are_rejected_alike(username: str, password: str) -> None:
    server = make_server(make_store(b"one"), AT_ONCE)
    events = server.on_bytes(protocol.encode_login_request(LoginRequest(username, password)), 0)
    assert events[0] == LoginRejected(
        username, RejectReason.NOT_AUTHORISED, "username and password must belong to an account"
    )
    assert server.take_output(0) == b"\x00\x02JA"
    assert server.on_bytes(login_bytes(), 1) == []
    assert server.state is State.CLOSING


def test_a_rejection_is_sent_after_its_delay_and_nothing_is_looked_at_meanwhile() -> None:
    server = make_server(make_store(b"one"))
    wrong = login_bytes(password="wrong")  # noqa: S106 - a wrong one
    (rejected,) = server.on_bytes(wrong, 3 * SECOND)
    assert isinstance(rejected, LoginRejected)
    assert (server.state, server.is_logged_in) == (State.REJECTING, False)
    assert server.on_bytes(login_bytes(), 3 * SECOND) == []
    assert server.next_deadline_ns == 4 * SECOND
    assert server.on_timer(4 * SECOND - 1) == []
    assert server.take_output(4 * SECOND - 1) == b""
    assert closed_of(server.on_timer(4 * SECOND)).reason is CloseReason.LOGIN_REJECTED
    assert server.take_output(4 * SECOND) == b"\x00\x02JA"
    assert server.is_drained


def test_a_client_that_leaves_before_its_rejection_and_a_server_that_stops_are_done() -> None:
    for end, state in (
        (ServerConnection.on_peer_closed, State.CLOSED),
        (ServerConnection.stop, State.CLOSING),
    ):
        server = make_server(make_store(b"one"))
        server.on_bytes(login_bytes("DAY9"), 0)
        closed_of(end(server, 1))
        assert server.state is state
        assert server.take_output(1) == b""


def test_letter_case_of_name_and_password_does_not_count() -> None:
    accounts = Accounts({"Trader": "Hush"})
    assert accounts.verify("tRADER", "hUSH")
    assert not accounts.verify("trader", "hush ")


def test_accounts_refuse_names_that_differ_only_in_case_or_are_blank() -> None:
    with pytest.raises(ConfigError, match="letter case"):
        Accounts({"Joe": "a", "JOE": "b"})
    with pytest.raises(ConfigError, match="must not be blank"):
        Accounts({"": "a"})


def test_passwords_appear_in_no_representation_and_no_error() -> None:
    request = LoginRequest("trader", PHRASE)
    server = make_server(make_store())
    events = server.on_bytes(login_bytes(password="not-" + PHRASE[:5]), 0)
    shown = repr((request, Accounts({"trader": PHRASE}), events, ClientConnection(request, 0).request))
    assert PHRASE not in shown
    assert "not-hush" not in shown
    hostile = make_server(make_store())
    broken = login_bytes().replace(b"hush-hush ", b"hush-\xff\xfe\x01  ")
    closed = closed_of(hostile.on_bytes(broken, 0))
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert "password" in closed.detail
    assert "hush" not in repr(closed)


def test_the_session_that_became_current_is_what_a_blank_request_means() -> None:
    sessions = StoredSessions(make_store(b"old"))
    sessions.roll_over(make_store(b"new", session="DAY2"))
    for asked, expected in (("", b"new"), ("DAY1", b"old")):
        server = ServerConnection(Accounts({"trader": PHRASE}), sessions, 0)
        server.on_bytes(login_bytes(asked), 0)
        assert packets_in(server.take_output(0))[1] == ("S", expected)
    with pytest.raises(ConfigError, match="name of its own"):
        sessions.roll_over(make_store(session="DAY1"))
    sessions.forget("DAY1")
    assert isinstance(sessions.open(LoginRequest("trader", "", "DAY1")), str)
    with pytest.raises(ConfigError, match="is current"):
        sessions.forget("DAY2")


def test_a_client_reads_back_session_and_number_from_the_answer() -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    client.login(0)
    assert client.take_output(0) == login_bytes()
    events = client.on_bytes(accepted_bytes("DAY1", 5), 1)
    assert events == [LoginAccepted("trader", "DAY1", 1, 5)]
    assert isinstance(events[0], LoginAccepted)
    assert events[0].skipped_count == 4
    assert (client.session, client.next_sequence) == ("DAY1", 5)


def test_a_client_refuses_another_session_than_it_asked_for() -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE, "DAY1", 9), 0)
    client.login(0)
    closed = closed_of(client.on_bytes(accepted_bytes("DAY2", 9), 0))
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert "'DAY1', as requested" in closed.detail
    assert "'DAY2'" in closed.detail


@pytest.mark.parametrize("reason", list(RejectReason))
def test_a_rejected_client_is_told_the_reason_and_closes(reason: RejectReason) -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    client.login(0)
    events = client.on_bytes(protocol.encode_login_rejected(reason), 0)
    assert isinstance(events[0], LoginRejected)
    assert events[0].reason is reason
    assert closed_of(events).reason is CloseReason.LOGIN_REJECTED


# Data.


def test_messages_are_counted_from_the_accepted_number() -> None:
    client = streaming_client(sequence=10)
    data = b"".join(protocol.packet(PacketType.SEQUENCED_DATA, text) for text in (b"a", b"", b"ccc"))
    events = client.on_bytes(data, 1)
    assert sequenced_of(events) == {10: b"a", 11: b"", 12: b"ccc"}
    assert len(events) == 1
    assert client.next_sequence == 13


def test_other_packets_between_sequenced_ones_keep_their_place() -> None:
    client = streaming_client()
    data = b"".join(
        (
            protocol.packet(PacketType.SEQUENCED_DATA, b"1"),
            protocol.packet(PacketType.UNSEQUENCED_DATA, b"u"),
            protocol.packet(PacketType.SERVER_HEARTBEAT),
            protocol.packet(PacketType.DEBUG, b"hello\xff"),
            protocol.packet(PacketType.SEQUENCED_DATA, b"2"),
        )
    )
    events = client.on_bytes(data, 1)
    assert [type(event) for event in events] == [SequencedData, UnsequencedData, DebugText, SequencedData]
    assert sequenced_of(events) == {1: b"1", 2: b"2"}
    assert events[1:3] == [UnsequencedData(b"u"), DebugText("hello\ufffd")]


def test_what_was_received_does_not_change_with_the_buffer_it_came_in() -> None:
    client = streaming_client()
    buffer = bytearray(protocol.packet(PacketType.SEQUENCED_DATA, b"keep"))
    events = client.on_bytes(buffer, 1)  # type: ignore[arg-type]  # a caller that reuses its memory
    buffer[:] = bytes(len(buffer))
    assert sequenced_of(events) == {1: b"keep"}


def test_unsequenced_data_and_debug_text_reach_the_server() -> None:
    server = streaming_server(make_store())
    client = streaming_client()
    client.send_unsequenced(b"order", 1)
    client.send_debug("caf\u00e9", 1)
    assert server.on_bytes(client.take_output(1), 1) == [UnsequencedData(b"order"), DebugText("caf?")]


def test_a_server_frames_no_more_than_a_chunk_until_it_is_taken() -> None:
    store = make_store(*[bytes(1_000)] * 500)
    server = make_server(store)
    server.on_bytes(login_bytes(), 0)
    for _ in range(20):
        assert server.on_messages(1) == []
    first = server.take_output(1)
    assert CHUNK_BYTES // 2 < len(first) <= 2 * CHUNK_BYTES
    taken = [first]
    for _ in range(10):
        server.on_messages(2)
        taken.append(server.take_output(2))
    assert [kind for kind, _ in packets_in(b"".join(taken))] == ["A"] + ["S"] * 500
    assert server.lag_count == 0


def test_the_longest_message_passes_from_server_to_client() -> None:
    message = bytes(range(256)) * 255 + bytes(MESSAGE_BYTES_MAX - 256 * 255)
    server = make_server(make_store(message))
    server.on_bytes(login_bytes(), 0)
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    client.login(0)
    assert sequenced_of(client.on_bytes(server.take_output(0), 0)) == {1: message}


# Time.


def test_a_heartbeat_goes_out_after_a_second_without_output_and_not_before() -> None:
    for machine, expected in (
        (streaming_server(make_store()), b"\x00\x01H"),
        (streaming_client(), b"\x00\x01R"),
    ):
        assert machine.next_deadline_ns == SECOND
        machine.on_timer(SECOND - 1)
        assert not machine.has_output
        machine.on_timer(SECOND)
        assert machine.take_output(SECOND) == expected
        assert machine.next_deadline_ns == 2 * SECOND


def test_data_takes_the_place_of_a_heartbeat() -> None:
    store = make_store()
    server = streaming_server(store)
    store.append(b"x")
    server.on_messages(SECOND // 2)
    server.take_output(SECOND // 2)
    server.on_timer(SECOND)
    assert not server.has_output
    server.on_timer(SECOND + SECOND // 2)
    assert server.take_output(2 * SECOND) == b"\x00\x01H"


def test_a_silent_peer_is_dead_after_fifteen_seconds() -> None:
    for machine in (streaming_server(make_store()), streaming_client()):
        for second in range(1, 15):
            assert machine.on_timer(second * SECOND) == []
            machine.take_output(second * SECOND)
        closed = closed_of(machine.on_timer(15 * SECOND))
        assert closed.reason is CloseReason.PEER_SILENT
        assert "nothing received for 15 s" in closed.detail
        assert not machine.has_output


def test_heartbeats_of_the_peer_keep_a_connection_alive() -> None:
    server, client = streaming_server(make_store()), streaming_client()
    for second in range(1, 60):
        now_ns = second * SECOND
        assert server.on_timer(now_ns) + client.on_timer(now_ns) == []
        assert server.on_bytes(client.take_output(now_ns), now_ns) == []
        assert client.on_bytes(server.take_output(now_ns), now_ns) == []


def test_silence_is_no_evidence_while_reading_is_paused() -> None:
    client = streaming_client()
    client.pause_reading()
    for second in range(1, 31):
        assert client.on_timer(second * SECOND) == []
        client.take_output(second * SECOND)
    client.resume_reading(30 * SECOND)
    for second in range(31, 45):
        assert client.on_timer(second * SECOND) == []
        client.take_output(second * SECOND)
    assert closed_of(client.on_timer(45 * SECOND)).reason is CloseReason.PEER_SILENT


def test_a_client_that_does_not_log_in_is_dropped_whatever_else_it_says() -> None:
    server = make_server(make_store())
    for second in range(5):
        assert server.on_bytes(protocol.packet(PacketType.CLIENT_HEARTBEAT), second * SECOND) == []
        assert server.on_timer(second * SECOND) == []
    closed = closed_of(server.on_timer(5 * SECOND))
    assert closed.reason is CloseReason.LOGIN_TIMEOUT
    assert closed.next_sequence == 0


def test_a_login_without_an_answer_is_given_up() -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    client.login(5 * SECOND)
    client.take_output(5 * SECOND)
    assert client.next_deadline_ns == 10 * SECOND
    assert closed_of(client.on_timer(10 * SECOND)).reason is CloseReason.LOGIN_TIMEOUT


def test_a_peer_that_takes_nothing_is_a_slow_consumer() -> None:
    store = make_store()
    server = streaming_server(store)
    store.append(b"x")
    server.on_messages(SECOND)
    heartbeat = protocol.packet(PacketType.CLIENT_HEARTBEAT)
    for second in range(2, 11):
        assert server.on_bytes(heartbeat, second * SECOND) == []
        assert server.on_timer(second * SECOND) == []
    closed = closed_of(server.on_timer(11 * SECOND))
    assert closed.reason is CloseReason.SLOW_CONSUMER
    assert "4 bytes of output waited 10 s (stall_ns)" in closed.detail


def test_output_beyond_the_limit_is_a_slow_consumer() -> None:
    settings = Settings(output_bytes_max=200_000)
    client = streaming_client(settings=settings)
    events: list[Event] = []
    for _ in range(3):
        assert events == []
        events = client.send_unsequenced(bytes(60_000), 1)
    assert events == []
    closed = closed_of(client.send_unsequenced(bytes(60_000), 1))
    assert closed.reason is CloseReason.SLOW_CONSUMER
    assert "at most 200000 bytes long (output_bytes_max), was 240012" in closed.detail
    assert not client.has_output


def test_a_client_behind_what_the_store_keeps_is_a_slow_consumer() -> None:
    store = MemoryStore("DAY1", retain_bytes=200_000, chunk_bytes=70_000)
    server = streaming_server(store)
    for _ in range(10):
        store.append(bytes(60_000))
    closed = closed_of(server.on_messages(1))
    assert closed.reason is CloseReason.SLOW_CONSUMER
    assert "session 'DAY1': sequence must be one that is held (9 to 10), was 1" in closed.detail


# Ends.


def test_an_ended_session_is_sent_to_its_end_and_then_z() -> None:
    store = make_store(b"one")
    server = streaming_server(store)
    store.append(b"two")
    store.end()
    events = server.on_messages(1)
    assert closed_of(events) == Closed(
        CloseReason.END_OF_SESSION, "session 'DAY1' ended before #3", next_sequence=3
    )
    assert packets_in(server.take_output(1)) == [("S", b"two"), ("Z", b"")]


def test_a_peer_that_was_told_of_the_end_may_close_first() -> None:
    store = make_store()
    store.end()
    server = make_server(store)
    server.on_bytes(login_bytes(), 0)
    client = streaming_client()
    client.logout(0)
    for machine in (server, client):
        machine.take_output(0)
        assert not machine.is_drained
        assert machine.next_deadline_ns == SECOND
        machine.on_timer(SECOND)
        assert machine.is_drained
        assert machine.state is State.CLOSING


def test_a_client_that_logs_in_after_the_end_gets_the_rest_and_z() -> None:
    store = make_store(b"one", b"two")
    store.end()
    server = make_server(store)
    server.on_bytes(login_bytes(sequence=2), 0)
    assert packets_in(server.take_output(0))[1:] == [("S", b"two"), ("Z", b"")]


def test_end_of_session_tells_the_client_where_it_stands() -> None:
    client = streaming_client()
    data = protocol.packet(PacketType.SEQUENCED_DATA, b"x") + protocol.packet(PacketType.END_OF_SESSION)
    events = client.on_bytes(data + b"\x00\x00ignored", 1)
    assert sequenced_of(events) == {1: b"x"}
    assert closed_of(events).reason is CloseReason.END_OF_SESSION
    assert closed_of(events).next_sequence == 2


def test_a_server_waits_for_a_client_that_still_reads_the_end_and_shows_life() -> None:
    store = make_store()
    server = streaming_server(store)
    store.end()
    server.on_messages(0)
    server.take_output(0)
    heartbeat = protocol.packet(PacketType.CLIENT_HEARTBEAT)
    for second in range(0, 60, 10):
        server.on_bytes(heartbeat, second * SECOND)
        server.on_timer(second * SECOND)
        assert server.state is State.CLOSING
    server.on_timer(60 * SECOND)
    assert server.state is State.CLOSED


def test_a_server_waits_no_longer_than_the_silence_limit_for_a_client_that_is_gone() -> None:
    store = make_store()
    server = streaming_server(store)
    store.end()
    server.on_messages(0)
    server.on_timer(SECOND)
    server.on_timer(15 * SECOND)
    assert server.state is State.CLOSED
    assert not server.has_output


def test_logging_out_ends_both_sides() -> None:
    server, client = streaming_server(make_store(b"x")), streaming_client()
    assert closed_of(client.logout(1)).reason is CloseReason.LOGGED_OUT
    assert closed_of(server.on_bytes(client.take_output(1), 2)).reason is CloseReason.LOGGED_OUT
    assert server.is_drained
    for machine in (server, client):
        assert machine.on_peer_closed(3) == []
        assert machine.state is State.CLOSED
        assert machine.next_deadline_ns is None


def test_a_broken_connection_tells_where_to_resume_and_what_was_cut() -> None:
    client = streaming_client()
    client.on_bytes(protocol.packet(PacketType.SEQUENCED_DATA, b"x") + b"\x00\x09S12", 1)
    closed = closed_of(client.on_peer_closed(2, "reset"))
    assert closed.reason is CloseReason.PEER_CLOSED
    assert closed.detail == "reset, 5 bytes into a packet that was not completed"
    assert closed.next_sequence == 2


def test_a_stopped_connection_closes_without_waiting_long() -> None:
    server = streaming_server(make_store())
    assert closed_of(server.stop(0)).reason is CloseReason.STOPPED
    assert server.stop(0) == []
    assert server.next_deadline_ns == 2 * SECOND
    server.on_timer(2 * SECOND)
    assert server.state is State.CLOSED


# Hostile input.

HOSTILE_TO_SERVER = {
    "zero length": (b"\x00\x00", "packet length must be 1 to"),
    "over-long": (b"\xff\xffL", "packet length must be 1 to 4096, was 65535"),
    "unknown type": (b"\x00\x01?", "packet type in state login must be one of '+', 'L', 'O', 'R', was '?'"),
    "binary type": (b"\x00\x01\x00", "was '\\x00'"),
    "data before login": (b"\x00\x05Uabcd", "packet type in state login"),
    "a server's packet": (accepted_bytes(), "packet type in state login"),
    "short login": (b"\x00\x10L" + bytes(15), "length of a packet of type 'L' must be 47, was 16"),
    "login of a later version": (b"\x00\x34L" + bytes(51), "must be 47, was 52"),
    "long heartbeat": (b"\x00\x02R!", "length of a packet of type 'R' must be 1, was 2"),
    "number not digits": (login_bytes()[:-20] + b"one".rjust(20), "requested sequence must be ASCII digits"),
    "number too large": (login_bytes()[:-20] + b"9" * 20, "requested sequence must be at most"),
    "number blank": (login_bytes()[:-20] + b" " * 20, "requested sequence must be ASCII digits"),
    "name not text": (login_bytes().replace(b"trader", b"tr\x00\xffer"), "username must be printable"),
}


@pytest.mark.parametrize("name", HOSTILE_TO_SERVER)
def test_hostile_bytes_before_login_close_the_connection_with_a_clear_error(name: str) -> None:
    data, expected = HOSTILE_TO_SERVER[name]
    server = make_server(make_store(b"secret"))
    closed = closed_of(server.on_bytes(data, 0))
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert expected in closed.detail
    assert isinstance(closed.error, PacketError)
    assert server.take_output(0) == b""
    assert server.on_bytes(login_bytes(), 1) == []


@pytest.mark.parametrize(
    "data, expected",
    [
        (login_bytes(), "packet type in state streaming must be one of '+', 'O', 'R', 'U', was 'L'"),
        (protocol.packet(PacketType.SEQUENCED_DATA, b"x"), "was 'S'"),
        (protocol.packet(PacketType.END_OF_SESSION), "was 'Z'"),
    ],
)
def test_packets_that_a_client_must_not_send_while_streaming_close_the_connection(
    data: bytes, expected: str
) -> None:
    closed = closed_of(streaming_server(make_store()).on_bytes(data, 1))
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert expected in closed.detail


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"\x00\x00", "packet length must be 1 to 65535, was 0"),
        (b"\x00\x01R", "was 'R'"),
        (accepted_bytes(), "packet type in state streaming"),
        (b"\x00\x02Z!", "length of a packet of type 'Z' must be 1, was 2"),
    ],
)
def test_packets_that_a_server_must_not_send_close_the_connection(data: bytes, expected: str) -> None:
    good = protocol.packet(PacketType.SEQUENCED_DATA, b"good")
    events = streaming_client().on_bytes(good + data + good, 1)
    assert sequenced_of(events) == {1: b"good"}
    closed = closed_of(events)
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert closed.next_sequence == 2
    assert expected in closed.detail


@pytest.mark.parametrize(
    "data, expected",
    [
        (protocol.packet(PacketType.SEQUENCED_DATA, b"x"), "packet type in state login"),
        (b"\x00\x1fA" + b"DAY1".rjust(10) + b"0".rjust(20), "sequence in login accepted must be 1 or more"),
        (b"\x00\x1fA" + b"DAY1".rjust(10) + b"x".rjust(20), "sequence must be ASCII digits"),
        (b"\x00\x02JX", "reject reason must be 'A' or 'S'"),
    ],
)
def test_a_wrong_answer_to_a_login_closes_the_connection(data: bytes, expected: str) -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    client.login(0)
    closed = closed_of(client.on_bytes(data, 0))
    assert closed.reason is CloseReason.PROTOCOL_ERROR
    assert expected in closed.detail


def test_a_packet_longer_than_the_setting_is_refused_by_its_head_alone() -> None:
    client = streaming_client(settings=Settings(packet_length_max=100))
    assert sequenced_of(client.on_bytes(protocol.packet(PacketType.SEQUENCED_DATA, bytes(99)), 1)) == {
        1: bytes(99)
    }
    closed = closed_of(client.on_bytes(b"\x00\x65", 1))
    assert "packet length must be 1 to 100, was 101" in closed.detail


def test_chatter_without_a_login_is_limited() -> None:
    server = make_server(make_store())
    events: list[Event] = []
    chatter = protocol.packet(PacketType.DEBUG, b"x" * 97)
    for _ in range(40):
        events = server.on_bytes(chatter, 0)
        assert events == [DebugText("x" * 97)]
    closed = closed_of(server.on_bytes(chatter * 2, 0))
    assert "bytes before a login must be at most 4096 (login_phase_bytes_max)" in closed.detail


def test_what_follows_a_login_in_the_same_bytes_does_not_count_as_chatter() -> None:
    server = make_server(make_store())
    events = server.on_bytes(login_bytes() + protocol.packet(PacketType.UNSEQUENCED_DATA, bytes(9_000)), 0)
    assert [type(event) for event in events] == [LoginAccepted, UnsequencedData]


# The tables.


@pytest.mark.parametrize("table", [CLIENT_TRANSITIONS, SERVER_TRANSITIONS])
def test_every_unlisted_move_is_refused_and_changes_nothing(table: dict[State, dict[Move, State]]) -> None:
    for state, move in itertools.product(table, Move):
        machine: Connection = (
            ClientConnection(LoginRequest("trader", PHRASE), 0)
            if table is CLIENT_TRANSITIONS
            else make_server(make_store())
        )
        machine.state = state
        if move in table[state]:
            machine._move(move)
            assert machine.state is table[state][move]
        else:
            with pytest.raises(IllegalTransition, match=move.value):
                machine._move(move)
            assert machine.state is state


def test_no_state_can_be_left_for_one_that_does_not_lead_to_the_end() -> None:
    for table in (CLIENT_TRANSITIONS, SERVER_TRANSITIONS):
        for start in table:
            reached = {start}
            while not (more := {target for state in reached for target in table[state].values()}) <= reached:
                reached |= more
            assert State.CLOSED in reached


def test_calls_out_of_turn_are_refused() -> None:
    client = ClientConnection(LoginRequest("trader", PHRASE), 0)
    for call in (client.logout, lambda now_ns: client.send_unsequenced(b"", now_ns)):
        with pytest.raises(IllegalTransition, match="idle"):
            call(0)
    client.login(0)
    with pytest.raises(IllegalTransition, match="login sent"):
        client.login(0)
    assert client.state is State.LOGIN
    client.logout(0)
    with pytest.raises(FeedError):
        client.logout(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"heartbeat_ns": 0},
        {"peer_silence_ns": 2 * SECOND},
        {"login_ns": 0},
        {"rejection_delay_ns": -1},
        {"unknown_per_address_max": 0},
        {"stall_ns": -1},
        {"linger_ns": 0},
        {"drain_ns": 0},
        {"courtesy_ns": 0},
        {"courtesy_ns": 2 * SECOND},
        {"linger_ns": 61 * SECOND},
        {"packet_length_max": 46},
        {"packet_length_max": 65_536},
        {"login_phase_bytes_max": 48},
        {"output_bytes_max": 100_000},
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Settings(**changes)
