"""The IEX kernels against their plain twins: decoding, encoding back, instrument ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import formats as f
from feeds import wire
from feeds.iex import directory
from feeds.iex.encode import encode_frames
from feeds.iex.symbol_kernels import instrument_id_of, mix32
from feeds.validation import validate
from tests import iex_reference as reference
from tests.iex_reference import Context, Decoding, any_messages, blocks_of, frames_of, valid_messages

pytestmark = pytest.mark.kernels


@given(st.lists(any_messages(), max_size=12))
def test_the_kernel_makes_the_frames_of_the_reference(messages: list[bytes]) -> None:
    context = Context(first_seq=41, first_message_seq=1_000)
    made = Decoding(context).decode(messages)
    expected = frames_of(messages, context)
    assert made.tobytes() == expected.tobytes(), _first_difference(made, expected)


@given(st.lists(any_messages(), max_size=12))
def test_no_message_makes_a_frame_that_breaks_its_schema(messages: list[bytes]) -> None:
    decoding = Decoding(Context())
    frames = validate(decoding.decode(messages))
    last_parts = frames["flags"] & int(wire.Flag.LAST_PART)
    assert np.count_nonzero(last_parts) == len(messages)
    assert decoding.counts.sum() == decoding.state[f.STATE_MESSAGE_COUNT] == len(messages)
    unparsed = np.count_nonzero(frames["schema_id"] == wire.Schema.UNPARSED)
    assert decoding.state[f.STATE_PROBLEM_COUNT] == unparsed


@given(st.lists(valid_messages(), min_size=1, max_size=12))
def test_encoding_the_frames_gives_back_the_messages(messages: list[bytes]) -> None:
    decoding = Decoding(Context())
    frames = decoding.decode(messages)
    assert decoding.state[f.STATE_PROBLEM_COUNT] == 0
    assert encode_frames(frames, decoding.directory) == blocks_of(messages)


@given(st.lists(any_messages(), max_size=20), st.integers(3, 9))
def test_a_full_output_changes_nothing_but_the_number_of_steps(messages: list[bytes], rows: int) -> None:
    in_steps, at_once = Decoding(Context(), frame_rows=rows), Decoding(Context())
    assert in_steps.decode(messages).tobytes() == at_once.decode(messages).tobytes()
    assert (in_steps.counts == at_once.counts).all()
    assert (in_steps.problems == at_once.problems).all()
    assert (in_steps.directory == at_once.directory).all()


@given(st.lists(any_messages(), max_size=6), st.data())
def test_bytes_of_unknown_count_end_where_a_message_leaves_them(
    messages: list[bytes], data: st.DataObject
) -> None:
    blocks = blocks_of(messages)
    cut = data.draw(st.integers(0, len(blocks)), label="cut")
    buffer = np.frombuffer(blocks + b"\xff" * 70_000, dtype=np.uint8).copy()
    runs = np.array([[0, cut, 1, -1, 7]], dtype=np.int64)
    decoding = Decoding(Context(session=7))
    frames = decoding.step(buffer, runs)

    whole: list[bytes] = []
    stopped, position = f.STOP_NONE, 0
    for message in messages:
        end = position + 2 + len(message)
        if position == cut:
            break
        if cut < position + 2 or end > cut:
            stopped = f.STOP_CUT_SHORT
        elif not message:
            stopped = f.STOP_ZERO_LENGTH
        if stopped != f.STOP_NONE:
            break
        whole.append(message)
        position = end
    assert frames.tobytes() == frames_of(whole, Context(session=7)).tobytes()
    assert decoding.state[f.STATE_STOPPED] == stopped
    if stopped != f.STOP_NONE:
        assert decoding.state[f.STATE_BYTE_INDEX] == position


@given(st.binary(min_size=8, max_size=8) | reference.symbols)
def test_an_instrument_id_is_a_function_of_the_symbol_alone(symbol: bytes) -> None:
    word = int.from_bytes(symbol, "little", signed=True)
    assert instrument_id_of(word) == reference.instrument_id(symbol)


@given(st.integers(0, 2**32 - 1))
def test_the_mixer_loses_no_bit(value: int) -> None:
    assert mix32(value) == reference.mix32(value)
    assert reference.unmix32(mix32(value)) == value


@given(st.text(reference.ALPHABET, min_size=1, max_size=6))
def test_ids_of_short_symbols_can_be_read_back_so_none_collide(symbol: str) -> None:
    code = reference.unmix32(directory.id_of(symbol))
    letters = ""
    while code:
        code, digit = divmod(code, 37)
        letters += reference.ALPHABET[digit - 1]
    assert letters == symbol


def _first_difference(made: wire.FrameArray, expected: wire.FrameArray) -> str:
    if len(made) != len(expected):
        return f"{len(made)} frames were made, {len(expected)} expected"
    for row, (left, right) in enumerate(zip(made, expected, strict=True)):
        if left.tobytes() != right.tobytes():
            schema = wire.Schema(int(right["schema_id"]))
            pair = (frames[row : row + 1].view(wire.FRAMES[schema]) for frames in (made, expected))
            return f"frame {row}: {' was expected to be '.join(str(frame[0]) for frame in pair)}"
    return ""
