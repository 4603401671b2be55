"""`--log opentelemetry:URL`: gauges `p2pfl.FIGURE` with the attribute `node`, sent by OTLP over HTTP. Test figures are
of the model after the round in `p2pfl.tested_round`.
"""

from __future__ import annotations

from typing import Any

from p2pfl.reporting.logs import Row, figures_in

EVERY_MS = 5_000.0


class OpenTelemetryLog:
    """The gauges, at the collector's URL, such as http://localhost:4318/v1/metrics."""

    needs = "opentelemetry.exporter.otlp.proto.http.metric_exporter"

    def __init__(self, place: str, reader: Any = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - as above
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415 - as above

        if reader is None:
            exporter = OTLPMetricExporter(endpoint=place)
            reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_MS)
        self._provider = MeterProvider(metric_readers=[reader])
        self._meter = self._provider.get_meter("p2pfl")
        self._gauges: dict[str, Any] = {}

    def write(self, row: Row) -> None:
        tested = row.get("tested_round")
        known = {"rounds": row["rounds"] or 0} | ({} if tested is None else {"tested_round": tested})
        for name, value in {**known, **figures_in(row)}.items():
            gauge = self._gauges.get(name) or self._meter.create_gauge(f"p2pfl.{name}")
            self._gauges[name] = gauge
            gauge.set(value, {"node": str(row["node"])})

    def close(self) -> None:
        self._provider.shutdown()
