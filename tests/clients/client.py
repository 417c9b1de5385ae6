"""What every client script shares: checks that name themselves, and one JSON line at the end.

A client does real work with a real package, checks what it can by itself (bytes that come back, plausible times, the
right error), and prints what it saw, so that whoever started it can compare with the card's own log.
"""

import json
import os
import sys
import time


PRESSURE = "--pressure" in sys.argv  # fill the card's memory to the package's own error, give it back, and work on
MOST_PIECES = 100000


class Client:
    """Collects what a client saw. Use as a context manager; on success prints one JSON line and ends with 0."""

    def __init__(self, name):
        self.seen = {"client": name, "pid": os.getpid()}

    def __enter__(self):
        return self

    def check(self, condition, what):
        """Fails the client with the sentence `what` unless the condition holds."""
        if not condition:
            raise AssertionError(what)

    def fill(self, take, words):
        """Calls take() and keeps what it gives until the package says that memory is out: with an error of its own in
        which one of `words` stands. The pieces, and the error's text."""
        pieces = []
        while len(pieces) < MOST_PIECES:
            try:
                pieces.append(take())
            except Exception as error:  # packages differ in the class, and move it between versions
                self.check(any(word in str(error).lower() for word in words), f"not an out-of-memory error: {error!r}")
                self.check(len(pieces) >= 3, f"out of memory after {len(pieces)} pieces: {error}")
                return pieces, f"{type(error).__name__}: {error}".splitlines()[0]
        raise AssertionError(f"{MOST_PIECES} pieces and never out of memory")

    def compare(self, body):
        """Runs body(), which compares figures of free memory, and once or twice more when it fails: under a grant those
        also follow what the agent reads off the card, once a second, which may come between two of them."""
        for _ in range(2):
            try:
                return body()
            except AssertionError:
                pass
        return body()

    def saw(self, **values):
        """Adds values to the JSON line."""
        self.seen.update(values)

    def __exit__(self, kind, error, trace):
        if kind is None:
            # Let the card come to rest, and whoever looks at it from outside see us with our memory.
            time.sleep(float(os.environ.get("SLUICE_CLIENT_LINGER_S", "0")))
            print(json.dumps(self.seen))
            return False
        if issubclass(kind, AssertionError):
            print(f"{self.seen['client']}: {error}", file=sys.stderr)
        return False


PTX_TEMPLATE = """// sluice kernel work us=200
.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 buffer, .param .u32 count)
{
    ret;
}
.visible .entry sluice_fill_u32(.param .u64 to, .param .u32 value, .param .u64 count)
{
    ret;
}
"""
