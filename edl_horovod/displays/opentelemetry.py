"""OpenTelemetry: a job's resets, their parts and checkpoints as spans of one trace, by its SDK."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.runs import Run
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.job.events import CheckpointEvent, Event, OnEvents, Recorded, ResetEvent
from edl_horovod.job.resets import Resets

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as e:
    raise MissingDependency(
        f"displays=[opentelemetry] needs a package that is not installed: {e}.",
        hint=f"To have it, {how_to_install('opentelemetry')}.",
    ) from e


@contextlib.contextmanager
def open_display(config: JobConfig) -> Iterator[OnEvents]:
    """Send spans to the collector of OTEL_EXPORTER_OTLP_ENDPOINT, or else of this machine."""
    run = Run(config, "opentelemetry")
    if not run.id:
        run.begin(secrets.token_hex(16))
    name = os.environ.get("OTEL_SERVICE_NAME") or "edl_horovod"
    provider = TracerProvider(resource=Resource.create({"service.name": name, "edl.job": run.name}))
    done, exporter = InMemorySpanExporter(), OTLPSpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(done))
    tracer, parent = provider.get_tracer("edl_horovod"), _parent(run.id)

    resets, in_reset, sent = Resets(), parent, set[str]()

    def add_span(name: str, within: Any, span: tuple[float, float], attributes: Any = None) -> Any:
        """Add a span from a time to another one, in seconds since the epoch."""
        began, until = (round(moment * 1e9) for moment in span)
        added = tracer.start_span(name, within, start_time=began, attributes=attributes)
        added.end(until)
        return trace.set_span_in_context(added)

    def add_parts(*, is_final: bool = False) -> None:
        """Add the parts of the newest reset, each once, when nothing changes them any more."""
        if not resets.newest:
            return
        reset = resets.newest[-1]
        # The coordinator's event, which tells these two apart, mostly comes after the reset's own.
        is_settled = reset.decided is not None or reset.first_step_seconds is not None or is_final
        for name, span in reset.parts.items():
            if name not in sent and (is_settled or name not in ("notice", "rendezvous")):
                add_span(name, in_reset, span)
                sent.add(name)
        if is_settled:
            sent.add("notice")  # One that becomes known later is a part of the rendezvous sent.

    def send() -> None:
        spans = done.get_finished_spans()
        done.clear()
        # Sent here and not by a processor, which would not say whether they arrived.
        if spans and exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector does not take spans")

    def show(events: list[Recorded]) -> None:
        nonlocal in_reset
        for recorded in run.new_events(events):
            if isinstance(recorded.event, ResetEvent):
                add_parts(is_final=True)
            resets.add(recorded)
            if (part := _part(recorded.event)) is not None:
                span_name, seconds, attributes = part
                span = (recorded.time - seconds, recorded.time)
                context = add_span(span_name, parent, span, attributes)
                if isinstance(recorded.event, ResetEvent):
                    in_reset = context
                    sent.clear()
            add_parts()
        send()

    try:
        yield show
        add_parts(is_final=True)
        send()
    finally:
        exporter.shutdown()
        provider.shutdown()


def _parent(trace_id: str) -> Any:
    """What makes spans a part of a trace; the trace goes through all launches of the job."""
    sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    # The span of the whole job, which is never over: its id follows from that of the trace.
    job = trace.SpanContext(int(trace_id, 16), int(trace_id[:16], 16), True, sampled)
    return trace.set_span_in_context(trace.NonRecordingSpan(job))


def _part(event: Event) -> tuple[str, float, dict[str, Any]] | None:
    """The name, the seconds and the attributes of the span that ends with an event."""
    match event:
        case ResetEvent():
            attributes = {
                "edl.generation": event.generation,
                "edl.ranks.before": event.old_size,
                "edl.ranks": event.new_size,
                "edl.step": event.step,
                "edl.reason": event.reason,
            }
            return "reset", event.seconds, attributes
        case CheckpointEvent(state="written"):
            attributes = {"edl.step": event.step, "edl.bytes": event.num_bytes or 0}
            return "checkpoint", event.seconds or 0.0, attributes
    return None
