"""Compression rules: which vector is sent with which codec, as in `--messages`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedlada.messages.blocks import INT4, INT8
from fedlada.messages.codec import Codec
from fedlada.messages.logarithmic import LOG8
from fedlada.messages.means import BlockMeans
from fedlada.messages.plain import BFloat16, Float16, Float32
from fedlada.messages.top_k import TopK
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Broadcast, Upload, named_tensors

CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float32(), BFloat16(), Float16(), INT8, INT4, LOG8)}
"""Codecs by name, besides parametrised ones such as `mean64` (a mean per 64 numbers) and `top0.05` (top 5 %)."""

PRESETS = {
    "lean": "params=int8:direction=int4:v=log8+every5:delta=int4:control=int8:control_change=int4",
}
"""Presets: names for sets of rules."""


@dataclass(frozen=True)
class Rule:
    """The codec of one vector, and how often it is sent."""

    codec: Codec
    every: int = 1
    """Rounds between messages of this vector; in between the receiver keeps its last version."""


@dataclass(frozen=True)
class Messages:
    """The codecs of all vectors, by name: `Messages.parse("params=bfloat16:delta=int8")`.

    A bare codec is for all vectors without a rule of their own (`int8:params=bfloat16`); the default is float32. A rule
    can be for one direction (`down/v=log8`), and can send a vector only every n-th round (`v=log8+every5`). Rules after
    a preset override its own (`lean:params=bfloat16`). Second moments must stay positive: they are sent as log8 where a
    bare codec does not keep that. Vectors that are not of the model's size are never compressed.
    """

    text: str
    """The rules in full, without presets, whose meaning may change between versions."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    otherwise: Codec = field(default_factory=Float32)

    @classmethod
    def parse(cls, text: str) -> Messages:
        """Parse the text of `--messages`."""
        words = in_full(text).split(":")
        bare = [word for word in words if "=" not in word]
        if len(bare) > 1:
            raise ValueError(f"messages: {text!r} has two codecs for all vectors: name vectors, as in delta={bare[1]}")
        if bare and "+" in bare[0]:
            raise ValueError(f"messages: everyN is for second moments only: write v={bare[0]} in {text!r}")
        rules: dict[str, Rule] = {}
        for word in words:
            name, equals, code = word.partition("=")
            if equals and (not re.fullmatch(r"((up|down)/)?[A-Za-z]\w*", name) or name in rules):
                raise ValueError(f"messages: {name!r} is not a vector's name, or is there twice in {text!r}")
            if equals:
                rules[name] = _rule(code, text)
        return cls(":".join(words), rules, _rule(bare[0], text).codec if bare else Float32())

    def of(self, method: FederatedMethod) -> dict[str, Rule]:
        """The rule of each vector that this method sends, by paths such as `down/params`; refuses impossible rules."""
        positive = {name for part in method.local for name in part.positive}
        rules = {}
        for path, size in vector_sizes(method).items():
            rules[path] = self._rule_of(path, short(path) in positive, is_whole=size == method.dry_run.num_params)
        _check_pairs(rules, self.text)
        return rules

    def check_names(self, known: set[str]) -> None:
        """Refuse a rule for a vector that no method sends."""
        ways = {f"{path.partition('/')[0]}/{short(path)}" for path in known}
        names = {short(path) for path in known}
        for name in self.rules:
            if name not in ways | names:
                raise ValueError(f"messages: no method sends {name!r}; there are {', '.join(sorted(names))}")

    def _rule_of(self, path: str, positive: bool, is_whole: bool) -> Rule:
        direction, name = path.partition("/")[0], short(path)
        rule = self.rules.get(f"{direction}/{name}") or self.rules.get(name)
        if not is_whole:
            if rule is not None and not rule.codec.is_exact:
                raise ValueError(f"messages: {name} is not of the model's size and can only be sent as float32")
            return Rule(Float32())
        if rule is None:
            rule = Rule(self.otherwise)
            if (rule.codec.has_memory and direction == "down") or (positive and not rule.codec.keeps_positive):
                rule = Rule(LOG8 if positive else Float32())
        codec = rule.codec
        if positive and not codec.keeps_positive:
            raise ValueError(f"messages: {name} must stay positive, which {codec.name} does not guarantee: use log8")
        if codec.needs_positive and not positive:
            raise ValueError(
                f"messages: {codec.name} is for second moments, and {name} may have negative numbers: use int8, or "
                "declare it positive in a transform of your own"
            )
        if codec.has_memory and direction == "down":
            raise ValueError(f"messages: {codec.name} is for uploads only, not for {name}")
        if rule.every > 1 and not positive:
            raise ValueError(f"messages: every{rule.every} is for second moments: {name} changes in every round")
        return rule


def vector_sizes(method: FederatedMethod) -> dict[str, int]:
    """The vectors that a method sends, with sizes as in its dry run: `down/params`, ..., `up/delta`, ..."""
    return {
        path: vector.numel()
        for state in (method.dry_run.broadcast, method.dry_run.upload)
        for path, (_, vector) in zip(paths(state), named_tensors(state), strict=True)
    }


def vectors(method: FederatedMethod) -> list[str]:
    """Names of the vectors that a method sends, in the order of its messages."""
    return list(vector_sizes(method))


def paths(state: Broadcast | Upload) -> list[str]:
    """The name of each vector of a message; if two transforms use the same name, their position is added."""
    direction = "down" if isinstance(state, Broadcast) else "up"
    full = [name for name, _ in named_tensors(state)]
    own = [name.rpartition(".")[2] for name in full]
    return [f"{direction}/{s if own.count(s) == 1 else f}" for s, f in zip(own, full, strict=True)]


def short(path: str) -> str:
    """A vector's name without its direction."""
    return re.split(r"[/.]", path)[-1]


def in_full(text: str) -> str:
    """The rules of a text in full: a preset's, overridden by those that follow it."""
    if not isinstance(text, str):
        raise ValueError(
            f"messages must be a preset, a codec or rules such as 'params=bfloat16:delta=int8', got {text!r}"
        )
    first, _, rest = text.partition(":")
    if first not in PRESETS:
        return text
    own = [word.partition("=")[::2] for word in PRESETS[first].split(":")]
    later = [word for word in rest.split(":") if word]
    replaced = {word.partition("=")[0] for word in later}
    return ":".join([*(f"{name}={code}" for name, code in own if name not in replaced), *later])


def _check_pairs(rules: Mapping[str, Rule], text: str) -> None:
    """Refuse a vector that is sent every few rounds, unless it is sent both ways equally often."""
    for path, rule in rules.items():
        same = [other for other in rules if short(other) == short(path)]
        if rule.every > 1 and {other.partition("/")[0] for other in same} != {"up", "down"}:
            raise ValueError(f"messages: {short(path)} is not sent both ways: it must be sent in every round")
        if len({rules[other].every for other in same}) > 1:
            raise ValueError(f"messages: {short(path)} must be sent equally often up and down, got {text!r}")


def _rule(word: str, text: str) -> Rule:
    name, plus, option = word.partition("+")
    every = re.fullmatch(r"every([1-9]\d*)", option) if plus else None
    if plus and every is None:
        raise ValueError(f"messages: {option!r} in {text!r} is unknown; only everyN can follow a +, such as every5")
    return Rule(_codec(name, text), int(every[1]) if every else 1)


def _codec(name: str, text: str) -> Codec:
    if name in CODECS:
        return CODECS[name]
    if (top := re.fullmatch(r"top(0?\.\d+)", name)) and float(top[1]) > 0:
        return TopK(name, float(top[1]))
    if mean := re.fullmatch(r"mean([1-9]\d{0,5})", name):
        return BlockMeans(name, int(mean[1]))
    known = ", ".join([*CODECS, "mean64", "top0.05"])
    raise ValueError(f"messages: {name!r} in {text!r} is neither a codec ({known}) nor a preset ({', '.join(PRESETS)})")
