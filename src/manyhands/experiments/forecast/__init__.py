"""Forecasts of time per step and speed-up, from measurements: pure functions and a simulation."""

from __future__ import annotations

from manyhands.experiments.forecast.calibration import Calibration
from manyhands.experiments.forecast.network import Network
from manyhands.experiments.forecast.placement import Placement
from manyhands.experiments.forecast.step_time import Forecast

__all__ = ["Calibration", "Forecast", "Network", "Placement"]
