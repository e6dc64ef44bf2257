"""An S3 server as a process of its own: prints its endpoint, and serves until its input ends.

Some calls of deltalake hold the interpreter's lock while they wait for the server: it cannot be a thread beside them.
"""

import logging
import sys

from moto.server import ThreadedMotoServer

if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
    sys.stdin.read()
    server.stop()
