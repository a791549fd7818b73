"""The rules for Prometheus in `k8s/monitoring`, and a query of Grafana, by Prometheus' own tool."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "k8s" / "monitoring" / "alerts.yaml"
MINUTES = 90

pytestmark = pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")


def state(name, is_so):
    return series(f'edl_job_state{{job_name="j",state="{name}"}}', f"{int(is_so)}x{MINUTES}")


def series(name, values):
    return {"series": name, "values": values}


def spent(cause, seconds_per_minute):
    name = f'edl_rank_seconds_total{{job_name="j",cause="{cause}"}}'
    return series(name, f"0+{seconds_per_minute}x{MINUTES}")


STEPS = series('edl_steps_done{job_name="j"}', f"0+9x{MINUTES}")
RECORDS = series('edl_records_done{job_name="j"}', f"0+99x{MINUTES}")
STUCK = series('edl_steps_done{job_name="j"}', f"9x{MINUTES}")
STUCK_RECORDS = series('edl_records_done{job_name="j"}', f"99x{MINUTES}")
UP, DOWN = (series('edl_up{job_name="j"}', f"{is_up}x{MINUTES}") for is_up in (1, 0))
RUNNING = [UP, state("running", True)]
WELL = [*RUNNING, STEPS, RECORDS, spent("computing", 110), spent("input", 10)]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (WELL, set()),
        ([state("failed", True)], {"EdlJobFailed"}),
        ([state("lost", True), state("running", False)], {"EdlJobFailed"}),
        ([state("waiting", True)], {"EdlJobWaits"}),
        ([*RUNNING, STUCK, STUCK_RECORDS], {"EdlJobStalls"}),
        # Another task than training, which has no steps.
        ([*RUNNING, STUCK, RECORDS], set()),
        # What the last answer of a cluster said does not change.
        ([DOWN, state("running", True), STUCK, STUCK_RECORDS], {"EdlJobIsUnknown"}),
        ([UP, state("finished", True), state("running", False), STUCK, STUCK_RECORDS], set()),
        ([spent("computing", 85), spent("input", 35)], {"EdlInputIsSlow", "EdlGoodputIsLow"}),
        (
            [spent("exchange", 30), spent("computing", 60), spent("building", 30)],
            {"EdlGoodputIsLow"},
        ),
    ],
)
def test_a_rule_fires_where_it_is_to(inputs, expected, tmp_path):
    names = [rule["alert"] for rule in rules()]
    assert expected <= set(names)
    checks = [
        # An expression, because a check of an alert wants all of its labels and its text.
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
            "eval_time": f"{MINUTES - 5}m",
            "exp_samples": [{"labels": "{}", "value": int(name in expected)}],
        }
        for name in names
    ]
    promtool(tmp_path, {"interval": "1m", "input_series": inputs, "promql_expr_test": checks})


def test_the_panel_of_time_is_right_with_an_account_each_72_seconds(tmp_path):
    panels = json.loads((RULES.parent / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    (query,) = [query for query in queries if "edl_rank_seconds_total" in query]
    query = query.replace("$job", ".*").replace("$__rate_interval", "1m")
    values = " ".join(str(72 * (sample // 6)) for sample in range(60))
    of_rank = series('edl_rank_seconds_total{job_name="j",cause="computing"}', values)
    checks = [
        {
            "expr": f"abs(sum({query}) - 1) < bool 0.3",
            "eval_time": f"{12 * sample}s",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for sample in range(50, 56)
    ]
    promtool(tmp_path, {"interval": "12s", "input_series": [of_rank], "promql_expr_test": checks})


def promtool(folder, test):
    file = folder / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))  # JSON is YAML.
    ran = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rules():
    return yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
