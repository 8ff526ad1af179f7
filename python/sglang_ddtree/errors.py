# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, by what it means for the service."""


class Refused(Exception):
    """Nothing was changed: wrong use, or a state from which no cutover should start. The message names the remedy."""


class Failed(Exception):
    """A step after the first change failed, or its result is beyond a limit: go back."""


class Interrupted(BaseException):
    """A signal asked to stop. Not an Exception, so that no handler of a step takes it for a failure of its own."""


class ServerError(Exception):
    """The server cannot be reached or answered with an error; the message says which."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
