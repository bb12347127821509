"""Errors of messages; each kind has a name, so that nobody takes a wrong number for a right one."""


class MessageError(RuntimeError):
    """Something is wrong with a message; the kinds below say what."""


class CannotEncode(MessageError):
    """The numbers do not fit the code: a NaN, an infinity, out of its range, or of the wrong sign."""


class Truncated(MessageError):
    """The message ends too early or goes on too long."""


class Corrupted(MessageError):
    """The message is not what was sent: its checksum or its contents contradict it."""


class VersionMismatch(MessageError):
    """The message was written in a form that this version does not know."""


class ContentMismatch(MessageError):
    """The message holds other vectors, sizes or codes than were agreed on."""
