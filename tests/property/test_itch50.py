"""The ITCH 5.0 kernels against the plain reference, whatever the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeds import formats as f
from feeds import wire
from feeds.decoder import Decoder, new_runs
from feeds.itch50 import FORMAT
from feeds.itch50.encode import encode_frames
from feeds.validation import validate
from feeds.wire import Schema
from tests import itch50_reference as reference

pytestmark = pytest.mark.kernels

CONTEXT = reference.Context()


def new_decoder(frame_capacity: int = 256, first_message_seq: int = 1) -> Decoder:
    return Decoder(
        FORMAT,
        CONTEXT.stream_id,
        midnight_ns=CONTEXT.midnight_ns,
        epoch=CONTEXT.epoch,
        first_message_seq=first_message_seq,
        frame_capacity=frame_capacity,
    )


def decode(
    decoder: Decoder, data: bytes, message_count: int, first_seq: int = CONTEXT.first_seq
) -> wire.FrameArray:
    runs = new_runs(1)
    runs[0] = 0, len(data), first_seq, message_count, CONTEXT.session
    batches = decoder.decode(data, runs, publish_time_ns=CONTEXT.publish_ns)
    copies = [batch.copy() for batch in batches]
    return np.concatenate(copies) if copies else wire.empty(0)


@given(messages=st.lists(reference.any_messages, max_size=12))
def test_kernel_and_reference_make_the_same_frames_of_any_messages(messages: list[bytes]) -> None:
    decoder = new_decoder()
    frames = decode(decoder, reference.blocks_of(messages), len(messages))
    assert frames.tobytes() == reference.decode(messages, CONTEXT).tobytes()
    validate(frames)
    assert decoder.message_count == len(messages)
    assert decoder.problem_count == np.count_nonzero(frames["schema_id"] == Schema.UNPARSED)
    for letter in {message[:1] for message in messages if message}:
        assert decoder.counts[letter[0]] >= sum(message[:1] == letter for message in messages)


@given(messages=st.lists(reference.valid_messages(), max_size=12))
def test_every_valid_message_survives_the_way_to_frames_and_back(messages: list[bytes]) -> None:
    decoder = new_decoder()
    data = reference.blocks_of(messages)
    frames = decode(decoder, data, len(messages))
    assert decoder.problem_count == 0
    assert decoder.symbol_changes == 0
    assert encode_frames(frames, decoder.directory, CONTEXT.midnight_ns) == data


@pytest.mark.parametrize("letter", list(reference.BODIES), ids=lambda letter: letter.decode())
@given(data=st.data())
def test_each_type_survives_alone(letter: bytes, data: st.DataObject) -> None:
    message = data.draw(reference.valid_messages((letter,)))
    decoder = new_decoder()
    block = reference.blocks_of([message])
    frames = decode(decoder, block, 1)
    assert frames.tobytes() == reference.decode([message], CONTEXT).tobytes()
    assert encode_frames(frames, decoder.directory, CONTEXT.midnight_ns) == block


@given(messages=st.lists(reference.any_messages, max_size=20), frame_capacity=st.integers(3, 9))
def test_resuming_with_a_full_output_gives_what_one_pass_gives(
    messages: list[bytes], frame_capacity: int
) -> None:
    data = reference.blocks_of(messages)
    small = new_decoder(frame_capacity)
    large = new_decoder()
    assert decode(small, data, len(messages)).tobytes() == decode(large, data, len(messages)).tobytes()
    assert (small.state == large.state).all()
    assert small.problems == large.problems


@given(messages=st.lists(reference.any_messages, min_size=1, max_size=12), data=st.data())
def test_a_decoder_that_joins_in_the_middle_makes_the_same_frames(
    messages: list[bytes], data: st.DataObject
) -> None:
    whole = decode(new_decoder(), reference.blocks_of(messages), len(messages))
    skipped = data.draw(st.integers(0, len(messages) - 1))
    first_seq = CONTEXT.first_seq + skipped
    expected = whole[whole["source_seq"] >= first_seq]
    late = new_decoder(first_message_seq=int(expected["message_seq"][0]))
    rest = messages[skipped:]
    found = decode(late, reference.blocks_of(rest), len(rest), first_seq)
    assert found.tobytes() == expected.tobytes()


@given(noise=st.binary(max_size=400))
def test_random_bytes_as_a_file_never_break_a_schema(noise: bytes) -> None:
    decoder = new_decoder()
    frames = decode(decoder, noise, -1)
    validate(frames)
    if decoder.stop is None:
        taken = len(noise)
    else:
        assert decoder.stop.reason in (f.STOP_ZERO_LENGTH, f.STOP_CUT_SHORT)
        taken = decoder.stop.position
    blocks = 0
    position = 0
    while position < taken:
        position += 2 + int.from_bytes(noise[position : position + 2], "big")
        blocks += 1
    assert position == taken
    assert decoder.message_count == blocks
