"""A bundle behind Ray Serve with its defaults: a class with __call__, Serve's own proxy, one replica, a cluster of its own.

python -m benchmarks.serve_peers.serve_default BUNDLE PORT          # until SIGINT or SIGTERM
python -m benchmarks.serve_peers.serve_default BUNDLE PORT 1000     # max_ongoing_requests, whose default is 5
"""

import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment
class Peer:
    def __init__(self, folder: str):
        from rayloom import bundle
        from rayloom.serving.predictor import Predictor

        self.predictor = Predictor(bundle.load(Path(folder)))

    async def __call__(self, request: Request) -> Any:
        return {"predictions": self.predictor.answer(await request.json())}


def main() -> None:
    folder, port, *ongoing = sys.argv[1:]
    peer = Peer.options(max_ongoing_requests=int(ongoing[0])) if ongoing else Peer  # type: ignore[attr-defined]
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": int(port)})
        serve.run(peer.bind(folder))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ray has put one of its own there
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
