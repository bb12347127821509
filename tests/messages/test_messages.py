"""What `--messages` may say, messages as bytes, and what the ledger counts."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlada
from fedlada import recipes
from fedlada.messages import (
    CODECS,
    PRESETS,
    CannotEncode,
    ContentMismatch,
    Corrupted,
    Exchange,
    Ledger,
    MessageError,
    Messages,
    Truncated,
    VersionMismatch,
    from_bytes,
    to_bytes,
)
from fedlada.methods.state import Broadcast, Upload, named_tensors
from fedlada.training.resolve import resolve_messages
from method_table import METHODS

LEAN = recipes.fedlada()
SIZE = 300


def broadcast(size=SIZE):
    random = torch.Generator().manual_seed(0)
    x, v, direction = (torch.randn(size, generator=random) for _ in range(3))
    return Broadcast(x, ({"v": v.abs() + 1e-9}, {"direction": direction}))


def codes(text, method=LEAN):
    return {path: rule.codec.name for path, rule in resolve_messages(text, method).of(method).items()}


def test_rules_by_name_direction_and_for_all():
    assert set(codes("float32").values()) == {"float32"}
    # A bare code keeps second moments positive by itself.
    assert codes("int8") == {
        "down/params": "int8", "down/v": "log8", "down/direction": "int8", "up/delta": "int8", "up/v": "log8",
    }  # fmt: skip
    mixed = codes("bfloat16:delta=top0.05:down/v=log8:direction=int4")
    assert mixed == {
        "down/params": "bfloat16", "down/v": "log8", "down/direction": "int4",
        "up/delta": "top0.05", "up/v": "bfloat16",
    }  # fmt: skip
    assert codes("top0.1")["down/params"] == "float32"
    assert codes("top0.1")["up/v"] == "log8"


@pytest.mark.parametrize("preset", [*PRESETS, *[name for name in CODECS if name != "log8"]])
@pytest.mark.parametrize("name", METHODS)
def test_every_preset_and_bare_code_suits_every_method(name, preset):
    method = METHODS[name].method()
    rules = resolve_messages(preset, method).of(method)
    numbers = {"up/steps"} & set(rules)  # sent as they are
    assert len(set(rules) - numbers) == METHODS[name].down + METHODS[name].up
    assert all(rules[path].codec.is_exact for path in numbers)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("int7", "'int7' in 'int7' is neither a code"),
        ("top0", "neither a code"),
        ("top1.5", "neither a code"),
        ("delta=int8:delta=int4", "there twice"),
        ("Delta=int8", "no method sends 'Delta'"),
        ("sideways/delta=int8", "not a vector's name"),
        ("momentum=int8", "no method sends 'momentum'"),
        ("elta=int8", "no method sends 'elta'"),
        ("a=int8", "no method sends 'a'"),
        ("v=int8", "v must stay positive, which int8 does not guarantee"),
        ("v=float16", "v must stay positive"),
        ("delta=log8", "log8 is for second moments"),
        ("delta=mean64", "mean64 is for second moments"),
        ("v=mean63", "mean63 must have blocks of a power of two"),
        ("params=top0.1", "top0.1 is for uploads only"),
        ("int8:int4", "two codecs for all vectors"),
        ("bfloat16+every5", "everyN is for second moments only"),
        (8, "must be a preset, a codec or rules"),
        ("v=log8+every0", "only everyN can follow a \\+"),
        ("v=log8+twice", "only everyN can follow a \\+"),
        ("delta=int8+every2", "every2 is for second moments"),
        ("up/v=log8+every5", "equally often up and down"),
        ("", "neither a code"),
    ],
)
def test_what_cannot_be_is_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=f"^messages.*{sentence}"):
        resolve_messages(text, LEAN)


def test_a_preset_can_be_changed_and_is_stored_in_full():
    assert codes("lean:params=bfloat16")["down/params"] == "bfloat16"
    assert codes("lean:params=bfloat16")["down/direction"] == "int4"
    assert Messages.parse("lean").text == PRESETS["lean"]


class Sender(fedlada.LocalTransform):
    """Sends what it is told to."""

    def __init__(self, shared=(), extra=(), positive=(), shape=None):
        self.shared, self.extra, self.positive, self.shape = shared, extra, frozenset(positive), shape

    def init_shared(self, params):
        return {name: torch.ones_like(params) for name in self.shared}

    def apply(self, update, local, step):
        return update, local

    def finish(self, local, done, step):
        return {
            name: done.delta.new_ones(done.delta.shape if self.shape is None else self.shape) for name in self.extra
        }, step.kept


def sending(*parts):
    return fedlada.FederatedMethod(name="sending", local=parts, server=fedlada.server.SGD(lr=1.0))


def test_what_goes_one_way_cannot_wait():
    for part in (Sender(extra=("w",), positive=("w",)), Sender(shared=("w",), positive=("w",))):
        with pytest.raises(ValueError, match="w is not sent both ways"):
            resolve_messages("w=log8+every3", sending(part))


def test_what_is_not_of_the_models_size_travels_as_it_is():
    for shape in ((1,), (), (2, 3)):
        method = sending(Sender(extra=("s",), shape=shape))
        assert codes("int8", method)["up/s"] == "float32"
        assert codes("top0.5", method)["up/delta"] == "top0.5"
        with pytest.raises(ValueError, match="s is not of the model's size"):
            resolve_messages("s=int8", method)
        upload = Upload(torch.ones(5), ({"s": torch.full(shape, 3.0)},))
        exchange = Exchange("int8", method, seed=0)
        sent = to_bytes(exchange.encode(upload, 1), exchange.about(1))
        received = exchange.decode(from_bytes(sent, exchange.expected(upload, 1), exchange.about(1)), upload)
        assert torch.equal(received.extra[0]["s"], upload.extra[0]["s"])


def message(text="lean", state=None, round=3):
    exchange, state = Exchange(text, LEAN, seed=1), state or broadcast()
    encoded = exchange.encode_finite(state, round)
    return to_bytes(encoded, exchange.about(round)), exchange.expected(state, round), exchange, state


@pytest.mark.parametrize("text", ["float32", "bfloat16", "float16", "int8", "int4", "lean"])
def test_a_message_survives_the_journey(text):
    data, expected, exchange, state = message(text)
    received = from_bytes(data, expected, exchange.about(3))
    direct = exchange.decode(exchange.encode(state, 3), state)
    for (name, one), (_, other) in zip(
        named_tensors(exchange.decode(received, state)), named_tensors(direct), strict=True
    ):
        assert torch.equal(one, other), name


def test_top_k_and_float64_survive_the_journey():
    for text, dtype in (("delta=top0.2", torch.float32), ("delta=top0.02", torch.float32), ("float32", torch.float64)):
        upload = Upload(torch.randn(SIZE, dtype=dtype), ({"v": torch.rand(SIZE, dtype=dtype) + 0.1}, {}))
        exchange = Exchange(text, LEAN, seed=1)
        encoded = exchange.encode_finite(upload, 1, client=4)
        received = from_bytes(to_bytes(encoded, {}), exchange.expected(upload, 1), {})
        back = exchange.decode(received, upload)
        assert torch.equal(back.delta, exchange.decode(encoded, upload).delta)
        assert back.delta.dtype == dtype


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_changed_byte_goes_unnoticed(data):
    sent, expected, exchange, _ = MESSAGE
    place = data.draw(st.integers(0, len(sent) - 1))
    changed = bytearray(sent)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MessageError):
        from_bytes(bytes(changed), expected, exchange.about(3))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_cut_or_lengthened_message_is_taken(data):
    sent, expected, exchange, _ = MESSAGE
    with pytest.raises((Truncated, Corrupted)):
        from_bytes(sent[: data.draw(st.integers(0, len(sent) - 1))], expected, exchange.about(3))
    with pytest.raises((Truncated, Corrupted)):
        from_bytes(sent + data.draw(st.binary(min_size=1, max_size=9)), expected, exchange.about(3))


def sealed(body):
    return body + struct.pack("<I", zlib.crc32(body))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_liar_with_a_right_checksum_gives_an_error_or_finite_numbers(data):
    """Whoever can write the checksum can send other numbers, but never a NaN, a wrong shape or a crash."""
    sent, expected, exchange, state = data.draw(st.sampled_from([MESSAGE, EXACT]))
    body = bytearray(sent[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = from_bytes(sealed(bytes(body)), expected, exchange.about(3))
    except MessageError:
        return
    for _, vector in named_tensors(exchange.decode(received, state)):
        assert vector.isfinite().all()
        assert vector.shape == (SIZE,)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_with_a_name(data):
    for body in (data, sealed(b"FLDM" + data), sealed(struct.pack("<4sHI", b"FLDM", 1, len(data)) + data)):
        with pytest.raises(MessageError):
            from_bytes(body, MESSAGE[1], {})


MESSAGE, EXACT = message(), message("float32")


def test_wider_numbers_than_agreed_are_refused():
    """They could be finite there and infinite here."""
    exchange = Exchange("float32", recipes.fedavg(), seed=0)
    sent = to_bytes(exchange.encode(Upload(torch.full((3,), 1e300, dtype=torch.float64), ()), 1), exchange.about(1))
    with pytest.raises(ContentMismatch, match="float64"):
        from_bytes(sent, exchange.expected(Upload(torch.zeros(3), ()), 1), exchange.about(1))


def test_a_message_of_another_round_or_method_is_refused():
    sent, expected, exchange, _ = MESSAGE
    for other in (exchange.about(4), Exchange("lean", recipes.fedlada(alpha=0.5), seed=1).about(2)):
        with pytest.raises(ContentMismatch, match="the message is for"):
            from_bytes(sent, expected, other)


def test_another_version_other_codes_other_sizes():
    sent, expected, exchange, _ = MESSAGE
    newer = sealed(sent[:4] + struct.pack("<H", 2) + sent[6:-4])
    with pytest.raises(VersionMismatch, match="version 2"):
        from_bytes(newer, expected, exchange.about(3))
    other = message("int8")
    with pytest.raises(ContentMismatch, match=r"down/direction came as \['int8'"):
        from_bytes(other[0], expected, other[2].about(3))
    with pytest.raises(ContentMismatch, match="301"):
        from_bytes(sent, exchange.expected(broadcast(301), 3), exchange.about(3))
    fewer = {path: one for path, one in expected.items() if path != "down/v"}
    with pytest.raises(ContentMismatch, match="holds down/direction, down/params, down/v instead of"):
        from_bytes(sent, fewer, exchange.about(3))


def test_a_header_that_is_no_header():
    for head in (b"[]", b"{}", b'{"about":1,"vectors":{}}', b"\xff\xfe", b"[" * 5000):
        with pytest.raises((Corrupted, ContentMismatch)):
            from_bytes(sealed(struct.pack("<4sHI", b"FLDM", 1, len(head)) + head), MESSAGE[1], {})
    head = json.dumps({"about": {}, "vectors": {path: [1, 2] for path in sorted(MESSAGE[1])}}).encode()
    with pytest.raises(ContentMismatch):
        from_bytes(sealed(struct.pack("<4sHI", b"FLDM", 1, len(head)) + head), MESSAGE[1], {})
    loud = json.dumps({"about": {}, "vectors": {"x" * 100_000: []}}).encode()
    with pytest.raises(ContentMismatch) as caught:
        from_bytes(sealed(struct.pack("<4sHI", b"FLDM", 1, len(loud)) + loud), MESSAGE[1], {})
    assert len(str(caught.value)) < 500


def test_what_has_not_changed_is_the_same_message():
    """Second moments of one period come in the same bits, so that a client may keep what it has; others never do."""
    exchange, state = Exchange("int8:v=log8+every5", LEAN, seed=1), broadcast()
    rounds = {round: exchange.encode(state, round) for round in (1, 5, 6, 10)}
    same = lambda path, one, other: torch.equal(  # noqa: E731
        rounds[one][path].parts["codes"], rounds[other][path].parts["codes"]
    )
    assert same("down/v", 1, 5)
    assert same("down/v", 6, 10)
    assert not same("down/v", 5, 6)
    assert not same("down/params", 1, 5)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_nothing_that_is_no_number_is_encoded(number):
    state = broadcast()
    state.params[7] = number
    for text in ("float32", "lean", "int4", "bfloat16"):
        with pytest.raises(CannotEncode, match="NaN or an infinity"):
            message(text, state)


def test_out_of_range_is_said_by_the_sender():
    state = broadcast()
    state.params[7] = 1e6
    with pytest.raises(CannotEncode, match="down/params does not fit into float16, which is for numbers up to 65504"):
        message("float16", state)


def test_ledger_by_client_direction_and_vector():
    ledger, other = Ledger(), Ledger()
    ledger.add(3, "down/params", 40)
    ledger.add(3, "up/delta", 10)
    ledger.add(3, "up/(envelope)", 2)
    other.add(5, "up/delta", 7)
    other.add(3, "up/delta", 4)
    ledger.merge(other)
    assert ledger.row(size=2) == {
        "bytes_up": 21,
        "bytes_down": 40,
        "nd_up": 21 / 16,
        "nd_down": 5.0,
        "bytes_by_vector": {"down/params": 40, "up/delta": 21, "up/(envelope)": 2},
        "bytes_by_client": {"3": [40, 16], "5": [0, 7]},
    }
    assert ledger.only("up").by_vector() == {"up/delta": 21, "up/(envelope)": 2}


def test_vectors_of_one_name_are_told_apart():
    from fedlada import FederatedMethod
    from fedlada.methods.local import AMSGrad, TowardGlobalDirection
    from fedlada.methods.server import SGD

    twice = FederatedMethod(name="twice", local=(TowardGlobalDirection(alpha=0.5),) * 2, server=SGD(lr=1.0))
    assert list(Messages.parse("direction=int4").of(twice)) == [
        "down/params", "down/shared.0.direction", "down/shared.1.direction", "up/delta",
    ]  # fmt: skip
    assert codes("direction=int4", twice)["down/shared.1.direction"] == "int4"
    adam_twice = FederatedMethod(name="twice", local=(AMSGrad(), AMSGrad()), server=SGD(lr=1.0))
    assert codes("int8", adam_twice)["up/extra.1.v"] == "log8"
