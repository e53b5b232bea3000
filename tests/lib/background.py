"""Work that is done beside a test.

Owns: the life of its thread.
"""

import threading


class Background:
    """A thread that does `work` while a `with` lasts; `work` returns when `stopping` is set."""

    def __init__(self):
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()

    def work(self):
        raise NotImplementedError
