"""The report's page in a real browser, driven over the DevTools protocol with a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import records

from manyhands.report import build
from manyhands.report.figures import theme
from manyhands.report.output.live_server import serving

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
NAME = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")


class Browser:
    """A headless browser with one page; `events` are those that the page sent so far."""

    def __init__(self, profile: Path) -> None:
        down, self.to = os.pipe()
        self.back, up = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        low, high = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (down, up))

        def wire() -> None:
            os.dup2(low, 3)
            os.dup2(high, 4)

        assert BROWSER is not None
        self.process = subprocess.Popen(
            [BROWSER, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (down, up, low, high):
            os.close(fd)
        self.events: list[dict[str, Any]] = []
        self.buffer = b""
        self.count = 0
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        end = time.monotonic() + 60
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser did not answer within 60 s"
            chunk = os.read(self.back, 1 << 20)
            assert chunk, "the browser ended"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path | str, *, width: int = 1280, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=850, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        self.loaded()

    def loaded(self) -> None:
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def complaints(self) -> list[Any]:
        self.evaluate("1")
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event for event in self.events if event.get("method") in kinds]

    def picture(self) -> bytes:
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = records.psgd()
    failed = records.record("sync", 3, repeat=7)
    failed |= {"name": NAME, "status": "failed", "error": NAME}
    sweep = records.sweep(folder / "psgd", [*runs, failed], title=NAME, question=NAME, command=NAME)
    return build([sweep], folder / "out")


def test_nothing_is_complained_about_and_nothing_is_loaded(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.complaints() == []
    loaded = browser.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


def test_figures_are_visible(browser: Browser, page: Path) -> None:
    browser.open(page)
    boxes = browser.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(s => {"
        " const b = s.getBoundingClientRect();"
        " return [b.width, b.height, s.querySelectorAll('path').length]})"
    )
    assert len(boxes) >= 11
    assert all(width > 300 and height > 100 and paths > 5 for width, height, paths in boxes)


def test_tables_sort_on_click(browser: Browser, page: Path) -> None:
    browser.open(page)
    column = (
        "[...document.querySelectorAll('#results tbody tr')].map(r => "
        "Number(r.cells[COLUMN].dataset.v))"
    )
    headers = browser.evaluate(
        "[...document.querySelectorAll('#results th')].map(t => t.textContent)"
    )
    at = headers.index("time")
    click = f"document.querySelectorAll('#results th button')[{at}].click()"
    sorts = f"document.querySelectorAll('#results th')[{at}].getAttribute('aria-sort')"
    browser.evaluate(click)
    values = browser.evaluate(column.replace("COLUMN", str(at)))
    assert values == sorted(values)
    assert len(values) == 16
    assert browser.evaluate(sorts) == "ascending"
    browser.evaluate(click)
    assert browser.evaluate(column.replace("COLUMN", str(at))) == sorted(values, reverse=True)
    assert browser.evaluate(sorts) == "descending"


# Opens all that is folded, and returns what reaches beyond the window; what scrolls may.
BEYOND = """(() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const held = (e) => e.closest(".table") && !e.matches(".table");
  return [...document.querySelectorAll("body *")].filter((e) => !held(e) && e.id !== "tip")
    .map((e) => [e.tagName, e.textContent.slice(0, 40), e.getBoundingClientRect()])
    .filter(([, , box]) => box.width && (box.left < -0.5 || box.right > innerWidth + 0.5))
    .map(([name, text]) => `${name}: ${text}`);
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 400, 768, 1400])
def test_nothing_reaches_beyond_the_window(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    for step in ("", "document.querySelector('.more').click();"):
        script = f"{step}[document.documentElement.scrollWidth, innerWidth]"
        inside, outside = browser.evaluate(script)
        assert inside <= outside == width
        assert browser.evaluate(BEYOND) == []


def test_the_story_comes_first(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = browser.evaluate("[...document.querySelectorAll('figure')].map(f => f.id)")
    assert shown[:3] == ["accuracy-time", "speedup", "phases"]
    assert len(shown) == len(set(shown))
    spoken = browser.evaluate(
        "[...document.querySelectorAll('figcaption')].map(c => c.querySelectorAll(':scope > p:not("
        ".save)').length)"
    )
    assert set(spoken) <= {0, 1}  # a sentence; others are folded
    assert spoken.count(1) > spoken.count(0)


def test_it_is_small(page: Path) -> None:
    assert page.stat().st_size < 500_000


def press(browser: Browser, key: str, code: str, text: str = "") -> None:
    browser.call(
        "Input.dispatchKeyEvent", type="keyDown", key=key, code=code, text=text,
        windowsVirtualKeyCode={"Tab": 9, "Enter": 13, "Space": 32}[code],
    )  # fmt: skip
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)


@pytest.mark.parametrize("width", [400, 1400])
def test_every_control_is_reached_and_works_by_keyboard(
    browser: Browser, page: Path, width: int
) -> None:
    browser.open(page, width=width)
    expected = browser.evaluate("""(() => {
      window.used = new Set();
      const shown = [...document.querySelectorAll("button, summary, svg.chart")]
        .filter((e) => e.checkVisibility());
      shown.forEach((e, i) => { e.dataset.number = i; });
      for (const button of shown.filter((e) => e.matches("button")))
        button.addEventListener("click", (event) => {
          window.used.add(button.dataset.number);
          if (button.matches("[data-save]")) event.stopImmediatePropagation();
        }, true);
      return shown.length;
    })()""")
    assert expected > 30
    seen = []
    for _ in range(expected):
        press(browser, "Tab", "Tab")
        number, kind = browser.evaluate(
            "[document.activeElement.dataset.number, document.activeElement.tagName]"
        )
        seen.append(int(number))
        if kind == "BUTTON":
            press(browser, "Enter", "Enter", "\r")
            press(browser, "Enter", "Enter", "\r")  # back again
        elif kind == "SUMMARY":
            is_open = "document.activeElement.parentElement.open"
            before = browser.evaluate(is_open)
            for after in (not before, before):
                press(browser, "Enter", "Enter", "\r")
                assert browser.evaluate(is_open) is after
    assert sorted(seen) == list(range(expected))
    idle = "[...document.querySelectorAll('button[data-number]')]"
    idle += ".map(e => e.dataset.number).filter(number => !window.used.has(number))"
    assert browser.evaluate(idle) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_picture_is_saved_with_its_title_and_setting(
    browser: Browser, page: Path, tmp_path: Path, dark: bool
) -> None:
    browser.open(page, dark=dark)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for kind in ("svg", "png"):
        browser.evaluate(f"document.querySelector('#speedup [data-save={kind}]').click()")
    files = [tmp_path / "speedup.svg", tmp_path / "speedup.png"]
    for _ in range(300):
        if all(file.exists() and file.stat().st_size for file in files):
            break
        time.sleep(0.1)
    text = files[0].read_text(encoding="utf-8")
    ET.fromstring(text)
    words = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    assert "Speed-up" in words
    assert "Compared: " in words
    assert "var(" not in text
    assert theme.COLOURS["paper"][dark] in text
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert browser.complaints() == []


def test_text_in_charts_is_readable_on_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, width=390)
    least = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map(t => "
        "parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))"
    )
    assert least >= 8.5


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_background(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    worst = browser.evaluate("""(() => {
      const canvas = document.createElement("canvas").getContext("2d");
      const light = (colour) => {
        canvas.fillStyle = colour;
        const hex = canvas.fillStyle;
        const parts = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
          .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const back = light(getComputedStyle(document.body).backgroundColor);
      const ratios = [...document.querySelectorAll("p, li, td, th, h1, h2, h3, dd, dt, svg text")]
        .map((e) => light(getComputedStyle(e)[e.tagName === "text" ? "fill" : "color"]))
        .map((l) => (Math.max(l, back) + 0.05) / (Math.min(l, back) + 0.05));
      return [back, Math.min(...ratios)];
    })()""")
    assert (worst[0] < 0.1) == dark
    assert worst[1] >= 4.5


def test_values_show_under_the_pointer_and_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    tip = "(t => [t.textContent, t.style.visibility])(document.getElementById('tip'))"
    box = browser.evaluate(
        "document.querySelector('#time').scrollIntoView();"
        "(({left, top, width, height}) => [left + width / 2, top + height / 2])"
        "(document.querySelector('#time .hits circle').getBoundingClientRect())"
    )
    for turn in range(50):  # the scroll's own event hides the tip, and may come late
        x = box[0] + turn % 2
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=box[1])
        words, visibility = browser.evaluate(tip)
        if visibility == "visible":
            break
        time.sleep(0.1)
    assert visibility == "visible"
    assert "1 worker" in words
    browser.evaluate("document.querySelector('#speedup svg').focus({preventScroll: true})")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert "×" in browser.evaluate(tip)[0]


def test_a_script_in_a_name_is_inert(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.title") == f"{NAME} · manyhands"
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    assert NAME in browser.evaluate("document.querySelector('.warn').textContent")


def test_it_prints(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    printed = browser.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_a_served_page_loads_itself_anew_when_a_run_ends(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    sweep = records.sweep(tmp_path, [])
    with serving([sweep]) as growing:
        browser.open(growing.address)
        assert "No run has ended yet" in browser.evaluate("document.body.textContent")
        for number, counted in ((1, "1 run"), (2, "2 runs")):
            browser.events.clear()
            place = sweep / "runs" / str(number)
            place.mkdir()
            (place / "run.json").write_text(json.dumps(records.record("sync", number)))
            growing.refresh()
            browser.loaded()
            assert f"records of {counted}." in browser.evaluate("document.body.textContent")
            assert browser.complaints() == []
        browser.open("about:blank")
