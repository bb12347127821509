"""Errors in messages, one class for each kind."""


class MessageError(RuntimeError):
    """A message is invalid; the subclasses say how."""


class CannotEncode(MessageError):
    """The numbers do not fit the codec: a NaN, an infinity, out of range, or of the wrong sign."""


class Truncated(MessageError):
    """The message is too short or too long."""


class Corrupted(MessageError):
    """The message is not what was sent: its checksum or its contents contradict it."""


class VersionMismatch(MessageError):
    """The message was written in a format that this version does not know."""


class ContentMismatch(MessageError):
    """The message holds other vectors, sizes or codecs than expected."""
