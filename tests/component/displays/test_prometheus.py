"""Debian's Prometheus scrapes a job's page, as one does that watches a cluster."""

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.dashboard import dashboard, new_job
from tests.job_events import append, event
from tests.ports import free_port
from tests.waiting import wait_until

EVENTS = (
    event("job", state="running", task="train"),
    event("step", step=3, size=2),
    event("account", seconds={"computing": 3.0, "input": 1.0}),
)
DASHBOARD = Path(__file__).parents[3] / "k8s" / "monitoring" / "dashboard.json"

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="apt-get install prometheus")


@contextlib.contextmanager
def prometheus(folder, shown):
    """Scrape a dashboard of a job or of a folder each second.

    Gives a function that asks for the value of an expression.
    """
    with dashboard(shown) as served, scraping(folder, served.url) as value:
        yield value


@contextlib.contextmanager
def scraping(folder, url):
    target = urllib.parse.urlsplit(url).netloc
    scrape = {"job_name": "edl", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [scrape]}))  # JSON is YAML.
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=error"]
    with subprocess.Popen(command, cwd=folder) as process:

        def value(expression):
            query = urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}") as answer:
                    results = json.load(answer)["data"]["result"]
            except URLError:
                assert process.poll() is None
                return None
            return float(results[0]["value"][1]) if results else None

        try:
            yield value
        finally:
            process.kill()


@pytest.mark.long
def test_it_follows_a_job(tmp_path):
    job_dir = new_job(tmp_path)
    append(job_dir, "host:0", *EVENTS)
    with prometheus(tmp_path, job_dir) as value:
        wait_until(lambda: value("edl_steps_done") == 3, "step 3")
        assert value("up") == 1
        assert value('sum(edl_rank_seconds_total{cause="computing"})') == 3.0
        assert value("edl_goodput_ratio") == 0.75
        append(job_dir, "host:0", event("step", step=9, size=1))
        wait_until(lambda: value("edl_steps_done") == 9, "step 9")
        assert value("edl_ring_ranks") == 1


@pytest.mark.long
def test_it_follows_all_jobs_of_a_folder_by_one_target(tmp_path):
    jobs = [new_job(tmp_path, name) for name in ("a.job", "b.job")]
    for number, job_dir in enumerate(jobs, 1):
        append(job_dir, "host:0", EVENTS[0], event("step", step=number))
    with prometheus(tmp_path, tmp_path) as value:
        wait_until(lambda: value("count(edl_steps_done)") == 2, "both jobs")
        assert value('edl_steps_done{job_name=~".*/a.job"}') == 1
        assert value('edl_steps_done{job_name=~".*/b.job"}') == 2
        assert value("count(edl_up == 1)") == 2


@pytest.mark.long
def test_every_query_of_grafanas_dashboard_has_an_answer(tmp_path):
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) >= len(panels) > 5
    job_dir = new_job(tmp_path)
    append(job_dir, "host:0", *EVENTS, event("evaluation", metrics={"accuracy": 0.5}))
    with prometheus(tmp_path, job_dir) as value:
        # Later, so the time that is left is known.
        append(job_dir, "host:0", event("step", step=9, size=2))
        for query in queries:
            # As Grafana does it.
            query = query.replace("$job", ".*").replace("$__rate_interval", "1m")
            wait_until(lambda query=query: value(query) is not None, query)
