"""The page: what stands on it, and that nothing breaks out of it."""

from html.parser import HTMLParser

from hypothesis import example, given
from hypothesis import strategies as st

from edl_horovod.cluster.causes import Cause
from edl_horovod.cluster.status import JobView, PodView
from edl_horovod.displays.page.rendering import HEIGHT, WIDTH, PageTemplate, draw, stairs
from edl_horovod.displays.page.snapshot import JobSnapshot
from edl_horovod.job.state import JobState, WorkerState

PAGE = PageTemplate()
NOW = 1_000_000.0
FINITE = st.floats(allow_nan=False, allow_infinity=False)


class _Parsed(HTMLParser):
    """The tags with the names of their attributes, and the text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[str] = []
        self.texts: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value for _, value in attrs if value]

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", ()))

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.tags.append(("comment", ()))

    def handle_decl(self, decl):
        self.tags.append(("declaration", ()))


def _page_of(text: str, *, in_cluster: bool) -> _Parsed:
    """A page with the text wherever somebody else's text may stand."""
    state = JobState(
        state="running",
        task="train",
        message=text,
        output=text,
        step=5,
        total_steps=9,
        loss=0.5,
        size=2,
        metrics={text: 0.5},
        workers={text: WorkerState("lost", NOW, text)},
    )
    pod = PodView(
        name="m-worker-0",
        role="worker",
        state="pending",
        restarts=0,
        node=text,
        message=text,
        created=NOW,
    )
    job = JobView(
        name="m",
        namespace="d",
        state="waiting",
        message=text,
        created=NOW,
        num_wanted=1,
        num_warm=0,
        slots_per_worker=1,
        pods=(pod,),
        waits_for=(Cause(text, f"{text} q", text),),
    )
    snapshot = JobSnapshot(
        time=NOW,
        state=state,
        details=job.details() if in_cluster else None,
        notable=((NOW, f"a{text}"),),
        problem=f"b{text}",
        loss=((1, 2.0), (2, 1.0)),
        ring=((NOW, 2),),
    )
    return _Parsed(PAGE.render(f"c{text}", snapshot, now=NOW))


@given(text=st.text(min_size=1), in_cluster=st.booleans())
@example(text="<script>alert(1)</script>", in_cluster=True)
@example(text="\" onload='alert(1)", in_cluster=False)
@example(text="</title><!--", in_cluster=True)
@example(text="{{ 7 * 7 }}{% raw %}", in_cluster=False)
@example(text="\ud800", in_cluster=True)
def test_no_text_breaks_out_of_the_page(text, in_cluster):
    assert _page_of(text, in_cluster=in_cluster).tags == _page_of("x", in_cluster=in_cluster).tags


def test_text_is_shown_as_it_was_written():
    parsed = _page_of("<b>&amp;{{ 7 }}", in_cluster=False)

    assert parsed.texts.count("b<b>&amp;{{ 7 }}") == 1
    assert " a<b>&amp;{{ 7 }}" in parsed.texts


def test_a_page_shows_step_loss_ring_and_workers():
    parsed = _page_of("x", in_cluster=False)

    shown = " ".join(parsed.texts)
    assert "5 of 9" in shown
    assert "0.5" in shown
    assert "2 ranks" in shown
    assert "loss over steps" in shown
    assert "ranks in the ring over time" not in shown, "it has one point, and no time has passed"


def test_a_page_of_nothing_says_why():
    parsed = _Parsed(PAGE.render("m", JobSnapshot(time=NOW, problem="no such job"), now=NOW))

    assert "no such job" in parsed.texts
    assert "unknown" in parsed.texts


def test_a_page_needs_no_script_and_asks_nobody_else():
    parsed = _page_of("x", in_cluster=True)

    assert "script" not in {tag for tag, _ in parsed.tags}
    assert not [value for value in parsed.values if "//" in value]
    assert not [names for _, names in parsed.tags if "style" in names]


def test_a_line_of_stairs_keeps_each_value_until_the_next():
    assert stairs([(0, 2), (5, 3)]) == ((0, 2), (5, 2), (5, 3))
    assert stairs([]) == ()


@given(st.lists(st.tuples(FINITE, FINITE), max_size=20))
def test_a_chart_stays_in_its_field(points):
    chart = draw("t", points, x_text=str, y_text=str)

    if len({x for x, _ in points}) < 2:
        assert chart is None
        return
    assert chart is not None
    corners = [tuple(map(float, corner.split(","))) for corner in chart.line.split()]
    assert len(corners) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in corners)
    assert chart.top == str(max(y for _, y in points))
