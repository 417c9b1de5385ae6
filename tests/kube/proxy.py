"""A TCP proxy in front of the API server, for faults that the network makes: connections cut, silence, lost answers.

It passes TLS through as it is; the API server's certificate is good for the same address.
"""

import socket
import threading
import time


class Proxy:
    def __init__(self, server):
        host, port = server.removeprefix("https://").rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lock = threading.Lock()
        self.pairs = set()
        self.passing = threading.Event()  # cleared: nothing passes in either direction
        self.passing.set()
        self.deaf = False  # answers are dropped
        self.refusing = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
            else:
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            server = socket.create_connection(self.target, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        pair = (client, server)
        with self.lock:
            self.pairs.add(pair)
        for source, sink, answers in ((client, server, False), (server, client, True)):
            threading.Thread(target=self.pump, args=(pair, source, sink, answers), daemon=True).start()

    def pump(self, pair, source, sink, answers):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                self.passing.wait()
                if answers and self.deaf:
                    continue
                sink.sendall(data)
        except OSError:
            pass
        self.close(pair)

    def close(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for one in pair:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def cut(self):
        """Every connection ends at once; new ones are taken."""
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self.close(pair)

    def refuse(self):
        """Until take(): every connection ends at once, new ones too."""
        self.refusing = True
        self.cut()

    def take(self):
        self.refusing = False

    def silence(self, seconds):
        """Connections stay and nothing arrives, then all of it does."""
        self.passing.clear()
        time.sleep(seconds)
        self.passing.set()

    def lose_answers(self, seconds):
        """What is sent arrives and takes effect; nothing comes back, and then the connections are cut."""
        self.deaf = True
        time.sleep(seconds)
        self.cut()
        self.deaf = False

    def stop(self):
        self.listener.close()
        self.passing.set()
        self.cut()
