"""Forecasts of time per step and speed-up, from measurements: pure functions and a simulation."""

from __future__ import annotations

from manyhands.experiments.forecast.calibration import Calibration
from manyhands.experiments.forecast.crew import Crew
from manyhands.experiments.forecast.model import Forecast
from manyhands.experiments.forecast.network import Network, parse_bandwidth, parse_latency

__all__ = ["Calibration", "Crew", "Forecast", "Network", "parse_bandwidth", "parse_latency"]
