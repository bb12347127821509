"""The report's page in a real browser: what is clicked, hovered, printed and asked for."""

from __future__ import annotations

import os
import re
import shutil
import threading

import pytest

import fedlada
from fedlada.plots.chart import Chart, Series
from fedlada.runs.clients import Names
from fedlada.workbench.report.page import RunRecord, write_page
from fedlada.workbench.report.table import Table
from fedlada.workbench.report.watch import LiveReport, serve
from tasks import UNEQUAL, blobs, small_net

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page's tests need playwright: pip install playwright"
)
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page's tests need a chromium: apt-get install chromium")

HOSTILE = (
    "</script><script>document.title='taken'</script><img src='http://elsewhere.test/x' onerror='document.title=1'>"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # The sandbox of Chromium does not start for root, which is what containers run as.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Visit:
    """A page that remembers what it asked for and what went wrong in it."""

    def __init__(self, browser, address, **settings):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        self.page = self.context.new_page()
        self.asked, self.wrong = [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message) or dialog.dismiss())
        self.page.set_default_timeout(8000)
        self.page.goto(address)

    def __enter__(self):
        return self.page, self

    def __exit__(self, *_):
        self.context.close()
        assert self.wrong == []


def run(group, seed, level, num_rounds=30, **changes):
    rows = [
        {
            "round": n,
            "train_loss": 2.0 / n,
            "drift": 0.1 * n,
            "bytes_up": 1e6,
            "bytes_down": 3e6,
            "seconds": 0.25,
            "clients": [n % 8, 8],
            "lost": [9] if n % 5 == 0 else [],
            "test_accuracy": level * n / num_rounds + 0.02 * seed,
        }
        for n in range(1, num_rounds + 1)
    ]
    config = {"method": group, "seed": seed, "dataset": "digits", "rounds": num_rounds, "target": 0.5}
    labels = [[client, 20 - client, 1] for client in range(10)]
    return RunRecord(
        **{
            "label": f"{group}, seed {seed}",
            "group": group,
            "config": config,
            "rows": rows,
            "command": f"fedlada run --method {group} --seed {seed}",
            "labels_per_client": labels,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A page with everything on it."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    kinds = ("line", "points", "bars", "arrows")
    chart = Chart("Speed", "S", "rounds", tuple(Series(kind, (1.0, 2.0), (3.0, 4.0), style=kind) for kind in kinds))
    write_page(
        path,
        title="fedavg, fedlada on digits",
        runs=[run(group, seed, level) for group, level in (("fedavg", 0.6), ("fedlada", 0.9)) for seed in (0, 1)],
        tables=[Table("Rounds to target", ("method", "rounds"), (("fedavg", "∞"), ("fedlada", "17")), ("A note.",))],
        charts=[chart],
        notes=["A sentence."],
        command="fedlada compare --methods fedavg,fedlada",
    )
    return path.as_uri()


def lines(page):
    return page.locator("#curves path.line")


def test_what_is_clicked_and_chosen_changes_what_is_shown(browser, comparison):
    with Visit(browser, comparison) as (page, visit):
        expect(page.locator("#facts")).to_have_text("4 runs · 2 groups · digits · 120 of 120 rounds")
        expect(lines(page)).to_have_count(2)
        expect(page.locator("#curves path.band")).to_have_count(2)
        fedavg = page.locator("#curves .legend").get_by_role("button", name="fedavg")
        fedavg.click()
        expect(lines(page)).to_have_count(1)
        expect(fedavg).to_have_attribute("aria-pressed", "false")
        page.get_by_role("button", name="Show all").first.click()
        expect(lines(page)).to_have_count(2)
        fedavg.dblclick()
        assert page.locator("#curves [data-series]").evaluate_all("all => all.map(one => one.dataset.series)") == [
            "fedavg"
        ]
        fedavg.press("Tab")  # everything can be reached without a mouse
        page.keyboard.press("Enter")
        expect(lines(page)).to_have_count(2)

        before = lines(page).first.get_attribute("d")
        page.get_by_label("Against", exact=True).select_option("megabytes")
        expect(page.locator("#curves svg.chart")).to_contain_text("megabytes, up + down")
        expect(page.locator("#curves svg.chart")).to_contain_text("120")  # 30 rounds of 4 MB
        page.get_by_label("log x").check()
        assert lines(page).first.get_attribute("d") != before
        page.get_by_label("Show", exact=True).select_option("drift")
        page.get_by_label("log y").check()
        expect(page.locator("#curves svg.chart")).to_have_attribute("aria-label", re.compile("drift against megabytes"))
        page.get_by_label("Band over seeds").select_option("none")
        expect(page.locator("#curves path.band")).to_have_count(0)
        page.get_by_label("Smoothing").select_option("5")
        expect(page.locator("#curves path.raw")).to_have_count(4)
        assert visit.asked == [comparison]  # nothing was fetched


def test_hovering_and_the_keyboard_show_values(browser, comparison):
    with Visit(browser, comparison) as (page, visit):
        chart = page.locator("#curves svg.chart")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 60)
        tip = page.locator("#curves .tip")
        expect(tip).to_be_visible()
        expect(tip).to_contain_text("round 30")
        expect(tip).to_contain_text(re.compile(r"fedlada\s*91\.00 % ± 1\.41 %\s*fedavg\s*61\.00 % ± 1\.41 %"))
        page.mouse.move(10, 10)
        expect(tip).to_be_hidden()
        chart.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(tip).to_contain_text("round 2")
        expect(page.locator("#spoken")).to_contain_text("round 2: fedlada 7.00 %")
        whole = lines(page).first.get_attribute("d")
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 600, box["y"] + 100, steps=3)
        page.mouse.up()
        assert lines(page).first.get_attribute("d") != whole  # zoomed
        page.get_by_role("button", name="Whole range").first.click()
        assert lines(page).first.get_attribute("d") == whole

        clients = page.get_by_role("img", name="How often each client was drawn")
        clients.focus()
        page.keyboard.press("End")
        expect(page.locator("#spoken")).to_contain_text("client 9, took part: 0 times, lost: 6 times, 21 samples")
        page.get_by_role("img", name="Samples of each of 3 classes").hover()
        expect(page.locator("#clients figure > .tip").first).to_contain_text("21 samplesclass 2: 1")
        visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy the command", exact=True).click()
        assert page.evaluate("navigator.clipboard.readText()") == "fedlada compare --methods fedavg,fedlada"


def test_clients_and_classes_are_read_by_their_names(browser, tmp_path):
    names = Names(clients=tuple(f"hospital {n}" for n in range(10)), classes=("cat", "dog", "a long name"))
    write_page(tmp_path / "page.html", title="named", runs=[run("fedavg", 0, 1.0, names=names)])
    with Visit(browser, (tmp_path / "page.html").as_uri()) as (page, visit):
        page.get_by_role("img", name="How often each client was drawn").press("End")
        expect(page.locator("#spoken")).to_contain_text("client hospital 9, took part")
        expect(page.locator("#spoken")).to_contain_text("most of class dog")
        held = page.get_by_role("img", name="Samples of each of 3 classes")
        expect(held).to_contain_text("a long…")
        expect(held).to_contain_text("hospit")
        assert not visit.wrong


def test_a_hostile_run_stays_text(browser, tmp_path):
    rows = [{"round": 1, "test_accuracy": None, "drift": 0.0, HOSTILE: 1.0, "__proto__": 2.0}]
    config = {"method": HOSTILE, HOSTILE: HOSTILE, "seed": None, "target": None, "rounds": "many"}
    hostile = run(HOSTILE, 0, 1.0, rows=rows, config=config, command=HOSTILE, folder=HOSTILE, labels_per_client=None)
    empty = run("__proto__", 0, 1.0, rows=[], config={})
    bad = Chart(
        HOSTILE, HOSTILE, HOSTILE, (Series(HOSTILE, (1.0, float("nan")), (0.0, 1.0)),), log_y=True, note=HOSTILE
    )
    table = Table(HOSTILE, (HOSTILE, ""), ((HOSTILE, ""),), (HOSTILE,))
    path = tmp_path / "hostile.html"
    write_page(
        path, title=HOSTILE, runs=[hostile, empty], tables=[table], charts=[bad], notes=[HOSTILE], command=HOSTILE
    )
    with Visit(browser, path.as_uri()) as (page, visit):
        expect(page.locator("h1")).to_have_text(HOSTILE)
        expect(page.locator("#runs tbody th").first).to_have_text(f"{HOSTILE}, seed 0")
        page.get_by_label("Show", exact=True).select_option("__proto__")
        page.get_by_label("log y").check()
        expect(page).to_have_title(HOSTILE)
        assert page.locator("img").count() == 0
        assert page.evaluate("document.scripts.length") == 2
        assert visit.asked == [path.as_uri()]


def test_on_a_phone_in_the_dark_and_on_paper(browser, comparison):
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    with Visit(browser, comparison, **phone) as (page, _):
        expect(lines(page)).to_have_count(2)
        for details in page.locator("details").all():
            details.evaluate("one => { one.open = true; }")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#curves svg.chart").tap()
        expect(page.locator("#curves .tip")).to_contain_text("round")
        page.emulate_media(color_scheme="light")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(media="print", color_scheme="dark")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (dark, light, paper)]
        assert brightness[0] < 150 < 650 < brightness[1] <= brightness[2] == 3 * 255
        expect(page.locator("#curves .controls")).to_be_hidden()
        page.emulate_media(media="screen")
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = false; })")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == 0


def test_large_pages_are_drawn(browser, tmp_path):
    runs = [run(f"method {n // 3}", n % 3, 0.5 + n / 60, num_rounds=1500) for n in range(30)]
    write_page(tmp_path / "large.html", title="large", runs=runs)
    with Visit(browser, (tmp_path / "large.html").as_uri()) as (page, _):
        expect(lines(page)).to_have_count(10)
        assert page.locator("*").count() < 6000  # what makes a page slow is how many elements it has
        page.locator("#curves svg.chart").hover()
        expect(page.locator("#curves .tip tr")).to_have_count(10)


def test_watch_shows_new_rounds_while_a_run_goes_on(browser, tmp_path):
    server = serve(LiveReport(tmp_path, "growing"), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    data = blobs()
    try:
        with Visit(browser, address) as (page, visit):
            expect(page.locator("#facts")).to_have_text("No run yet.")
            seen = []

            def look(_, row):
                """The folder is told last: in each round the rounds before it can be seen."""
                if row["round"] in (2, 4):
                    expect(page.locator("#facts")).to_have_text(
                        re.compile(f"{row['round'] - 1} rounds?$"), timeout=10_000
                    )
                    seen.append(row["round"])
                    if row["round"] == 2:
                        page.get_by_label("Show", exact=True).select_option("drift")

            fedlada.simulate(
                small_net(),
                data,
                test=data,
                partition=UNEQUAL,
                cohort_size=2,
                rounds=4,
                out=tmp_path / "r",
                callbacks=[look],
            )
            expect(page.locator("#facts")).to_contain_text("4 rounds", timeout=10_000)
            assert seen == [2, 4]
            expect(page.get_by_label("Show", exact=True)).to_have_value("drift")  # what was chosen stays
            expect(page.get_by_role("img", name="Samples of each of 3 classes")).to_be_visible()
            assert {re.sub(r"[0-9a-f]{20}$", "ID", url.removeprefix(address)) for url in visit.asked} == {
                "",
                "data",
                "run/ID",
            }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
