"""One damaged JSON object made readable again, and what was wrong with it.

Used for an element that does not decode, never for a sound one. What writers get wrong is known: ``NaN`` and ``inf``
(pytorch/kineto#105), raw control characters (pytorch/pytorch#130622), lone backslashes of Windows paths
(pytorch/pytorch#98432), quotes inside names (pytorch/kineto#1459), bare words (pytorch/pytorch#33961), commas missing
or doubled (pytorch/pytorch#95460).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from parsers.columns import integer
from parsers.lexing import skip_space

NON_FINITE = "numbers that are not finite"
BARE_WORDS = "bare words"
BAD_NUMBERS = "malformed numbers"
CONTROL = "raw control characters"
BACKSLASHES = "lone backslashes"
QUOTES = "quotes inside strings"
COMMAS = "missing or doubled commas"
SURROGATES = "halves of surrogate pairs"

# A name runs to the quote that is followed by the next key of an event.
_NAME = re.compile(
    rb'"name"\s*:\s*"(.*?)"(?=\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s|cname)"\s*:|\s*\}\s*\Z)', re.DOTALL
)
_INNER_QUOTE = re.compile(rb'(?<!\\)((?:\\\\)*)"')
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|.|\Z)', re.DOTALL)
_GOOD_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BACKSLASH = re.compile(rb'\\(?!")')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_NON_FINITE = re.compile(rb"[+-]?(?:nan(?:\(\w*\))?|inf|infinity)\Z", re.IGNORECASE)
_LOOSE_NUMBER = re.compile(rb"\+?(-?)0*(\d*)\.?(\d*)\Z")
_HEX = re.compile(rb"0[xX][0-9a-fA-F]{1,16}\Z")
_WORD = re.compile(rb'[^\s,:{}\[\]"]+')
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"\s*:', re.DOTALL)
_KEY_FOLLOWS = re.compile(rb',[\s,]*(?:\}|"(?:[^"\\]|\\.)*+"\s*:)', re.DOTALL)
_VALUE_FOLLOWS = re.compile(rb',[\s,]*(?:[\["{\]]|-?\d|true|false|null|nan|inf)', re.IGNORECASE)
# Tokens that are sound (no group), and those that are not: a string (1), a word (2).
_TOKEN = re.compile(
    rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
    rb"|(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?|true|false|null)(?=[\s,\]}])"
    rb'|("(?:[^"\\]|\\.)*+")|([^\s,:{}\[\]"]+)',
    re.DOTALL,
)
_MAX_EXPONENT = 300  # beyond it a number is no double any more


class Repaired(NamedTuple):
    """What became of a damaged value.

    Attributes:
        text: the value as JSON; None where it has no reading.
        kinds: the kinds of damage that were mended.
        unfinished: the text ended inside the value: a longer one may have a reading.
    """

    text: bytes | None
    kinds: frozenset[str] = frozenset()
    unfinished: bool = False


class _UnrepairableError(Exception):
    """The text has no reading as one value."""


class _UnfinishedError(_UnrepairableError):
    """The text ends inside the value."""


def repair(text: bytes) -> Repaired:
    """Rewrite one JSON value so that it decodes.

    Args:
        text: from its first to its last bracket.
    """
    done = _attempt(text)
    if done.text is None and b"\\" in text:  # a path that ends in a backslash swallows the quote after it
        raw = _attempt(text.replace(b"\\", b"\\\\"))
        if raw.text is not None:
            return raw._replace(kinds=raw.kinds | {BACKSLASHES})
    return done


def retouch(text: bytes) -> Repaired:
    """Replace only the words and strings that no JSON reader takes, without a look at the structure.

    This mends what is common (``inf``, control characters, lone backslashes) ten times as fast as `repair`.
    """
    work = _Repair(text)
    done = 0
    for match in _TOKEN.finditer(text):
        if match.lastindex == 1:
            new = b'"' + work.content(match[1][1:-1]) + b'"'
        elif match.lastindex == 2:
            new = work.scalar(match[2])
        else:
            continue
        work.out += (text[done : match.start()], new)
        done = match.end()
    work.out.append(text[done:])
    return Repaired(b"".join(work.out) if done else None, frozenset(work.kinds))


def _attempt(text: bytes) -> Repaired:
    work = _Repair(_quote_name(text))
    try:
        end = work.value(0)
    except (_UnrepairableError, RecursionError) as error:
        return Repaired(None, unfinished=isinstance(error, _UnfinishedError))
    if skip_space(work.text, end, len(work.text)) < len(work.text):
        return Repaired(None)
    if work.text != text:
        work.kinds.add(QUOTES)
    return Repaired(b"".join(work.out), frozenset(work.kinds))


def _quote_name(text: bytes) -> bytes:
    """Escape the quotes inside the event's name, found by the key that follows it."""
    at = text.find(b'"name"')
    match = _NAME.match(text, at) if at >= 0 else None
    if match is None or b'"' not in match[1]:
        return text
    inner = _INNER_QUOTE.sub(rb'\1\\"', match[1])
    return text[: match.start(1)] + inner + text[match.end(1) :]


class _Repair:
    """A reader that writes down what it should have read."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.out: list[bytes] = []
        self.kinds: set[str] = set()

    def value(self, at: int, *, in_array: bool = False) -> int:
        """Read one value and write it down; the position after it."""
        at = skip_space(self.text, at, len(self.text))
        byte = self.text[at : at + 1]
        if byte == b"{":
            return self._members(at, b"}")
        if byte == b"[":
            return self._members(at, b"]")
        if byte == b'"':
            return self._string(at, in_array=in_array)
        return self._word(at)

    def _members(self, at: int, close: bytes) -> int:
        """The inside of an object or array, with its commas put right."""
        self.out.append(self.text[at : at + 1])
        at += 1
        first, commas = True, 0
        while True:
            at = skip_space(self.text, at, len(self.text))
            byte = self.text[at : at + 1]
            if byte == b",":
                commas += 1
                at += 1
                continue
            if not byte:
                raise _UnfinishedError
            if byte == close:
                if commas:
                    self.kinds.add(COMMAS)
                self.out.append(close)
                return at + 1
            if commas != (0 if first else 1):
                self.kinds.add(COMMAS)
            if not first:
                self.out.append(b",")
            first, commas = False, 0
            at = self._pair(at) if close == b"}" else self.value(at, in_array=True)

    def _pair(self, at: int) -> int:
        if self.text[at : at + 1] != b'"':
            raise _UnrepairableError
        at = skip_space(self.text, self._string(at, key=True), len(self.text))
        if self.text[at : at + 1] != b":":
            raise _UnrepairableError
        self.out.append(b":")
        at = skip_space(self.text, at + 1, len(self.text))
        if self.text[at : at + 1] in {b",", b"}"}:
            self.kinds.add(BARE_WORDS)
            self.out.append(b"null")
            return at
        return self.value(at)

    def _string(self, at: int, *, key: bool = False, in_array: bool = False) -> int:
        """A string up to the quote that can end it: a key is followed by a colon, a value by a comma or a bracket."""
        end = at + 1
        while not self._ends(end := self._next_quote(end), key=key, in_array=in_array):
            end += 1
        self.out.append(b'"' + self.content(self.text[at + 1 : end]) + b'"')
        return end + 1

    def _ends(self, quote: int, *, key: bool, in_array: bool) -> bool:
        """Whether the string that was begun ends at this quote."""
        after = skip_space(self.text, quote + 1, len(self.text))
        follows = self.text[after : after + 1]
        if key:
            return follows == b":"
        if follows == b":":
            raise _UnrepairableError  # a key inside a value: two events run into each other
        if follows == b",":
            return bool((_VALUE_FOLLOWS if in_array else _KEY_FOLLOWS).match(self.text, after))
        if follows == b'"':  # a comma is missing
            return bool(_KEY.match(self.text, after))
        return follows in {b"}", b"]"}

    def _next_quote(self, at: int) -> int:
        while True:
            end = self.text.find(b'"', at)
            if end < 0:
                raise _UnfinishedError
            first = end
            while first > at and self.text[first - 1 : first] == b"\\":
                first -= 1
            if (end - first) % 2 == 0:
                return end
            at = end + 1

    def content(self, inner: bytes) -> bytes:
        """The inside of a string, with everything escaped that must be."""
        if b'"' in inner:
            quoted = _INNER_QUOTE.sub(rb'\1\\"', inner)
            if quoted != inner:
                self.kinds.add(QUOTES)
                inner = quoted
        if b"\\" in inner:
            if b"\\\\" not in inner and any(not _GOOD_ESCAPE.match(found[0]) for found in _ESCAPE.finditer(inner)):
                self.kinds.add(BACKSLASHES)  # a writer that escapes nothing: \t of \train.py is no tab
                inner = _BACKSLASH.sub(rb"\\\\", inner)
            inner = _ESCAPE.sub(self._escape, inner)
            inner = _SURROGATE.sub(self._surrogate, inner)
        if _CONTROL.search(inner):
            self.kinds.add(CONTROL)
            inner = _CONTROL.sub(lambda match: b"\\u%04x" % match[0][0], inner)
        return inner

    def _escape(self, match: re.Match[bytes]) -> bytes:
        if _GOOD_ESCAPE.match(match[0]):
            return match[0]
        self.kinds.add(BACKSLASHES)
        return b"\\" + match[0] if match[0] != b"\\" else b"\\\\"

    def _surrogate(self, match: re.Match[bytes]) -> bytes:
        if len(match[2]) == 12:
            return match[0]
        self.kinds.add(SURROGATES)
        return match[1] + b"\\ufffd"

    def _word(self, at: int) -> int:
        match = _WORD.match(self.text, at)
        if match is None:
            raise _UnrepairableError
        self.out.append(self.scalar(match[0]))
        return match.end()

    def scalar(self, word: bytes) -> bytes:
        """What a word or number stands for."""
        if word in {b"true", b"false", b"null"}:
            return word
        if _NUMBER.match(word):
            exponent = re.split(rb"[eE]", word)[1:]
            if exponent and abs(integer(exponent[0])) > _MAX_EXPONENT:
                self.kinds.add(NON_FINITE)
                return b"null"
            return word
        if _NON_FINITE.match(word):
            self.kinds.add(NON_FINITE)
            return b"null"
        if _HEX.match(word):
            self.kinds.add(BAD_NUMBERS)
            return b"%d" % int(word, 16)
        loose = _LOOSE_NUMBER.match(word)
        if loose and (loose[2] or loose[3] or b"0" in word):
            self.kinds.add(BAD_NUMBERS)
            return loose[1] + (loose[2] or b"0") + (b"." + loose[3] if loose[3] else b"")
        self.kinds.add(BARE_WORDS)
        return {b"True": b"true", b"False": b"false"}.get(word, b"null")
