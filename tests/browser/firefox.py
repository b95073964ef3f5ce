"""A real Firefox, as Debian ships it, driven over WebDriver BiDi, which it speaks without a driver of its own."""

import asyncio
import json
import re
import shutil
import subprocess
import threading
from itertools import count

PROGRAMS = ("firefox-esr", "firefox")
QUIET = {
    "network.proxy.type": 1,  # nothing leaves the machine: a proxy that is not there
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.no_proxies_on": "127.0.0.1",
    "network.proxy.allow_hijacking_localhost": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "browser.shell.checkDefaultBrowser": False,
}


def program():
    """The path of Firefox; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Firefox:
    """One tab of a Firefox without a window, with a profile of its own."""

    def __init__(self, profile):
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in QUIET.items()]
        (profile / "user.js").write_text("\n".join(lines))
        options = ["--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
        self.process = subprocess.Popen(
            [program(), *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        address = next(found[0] for line in self.process.stderr if (found := re.search(r"ws://127\.0\.0\.1:\d+", line)))
        # In a thread of its own: Playwright's loop runs in the test's.
        self._loop, self._numbers = asyncio.new_event_loop(), count()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._socket = self._wait(self._connected(f"{address}/session"))
        self._send("session.new", capabilities={})
        self._tab = self._send("browsingContext.getTree")["contexts"][0]["context"]

    def _wait(self, action):
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(300)

    async def _connected(self, address):
        from tornado.websocket import websocket_connect

        return await websocket_connect(address, max_message_size=2**26)

    def _send(self, method, **parameters):
        number = next(self._numbers)

        async def exchange():
            await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
            while True:
                answer = json.loads(await asyncio.wait_for(self._socket.read_message(), 240))
                if answer.get("id") == number:
                    return answer

        answer = self._wait(exchange())
        if answer["type"] == "error":
            raise RuntimeError(f"{method}: {answer['message']}")
        return answer["result"]

    def go(self, address):
        self._send("browsingContext.navigate", context=self._tab, url=address, wait="complete")

    def evaluate(self, expression):
        """The value of an expression in the page; promises are waited for."""
        found = self._send("script.evaluate", expression=expression, target={"context": self._tab}, awaitPromise=True)
        return found["result"].get("value")

    def close(self):
        async def end():
            self._socket.close()

        self._wait(end())
        self.process.terminate()
        self.process.wait(20)
        self.process.stderr.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
