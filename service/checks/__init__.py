"""The catalogue: one line per check, in reading order."""

from __future__ import annotations

from service.check import Check
from service.checks.compression import compression
from service.checks.cosine_floor import cosine_floor
from service.checks.drift import drift
from service.checks.geometry import geometry
from service.checks.group_structure import group_structure
from service.checks.label_neighbours import label_neighbours
from service.checks.linear_probe import linear_probe
from service.checks.model_comparison import model_comparison
from service.checks.neighbour_stability import neighbour_stability
from service.checks.power import power
from service.checks.retrieval import retrieval
from service.checks.search_hygiene import search_hygiene
from service.checks.seed_contrasts import seed_contrasts
from service.checks.stress_response import stress_response

CATALOGUE: tuple[Check, ...] = (
    geometry,
    search_hygiene,
    cosine_floor,
    group_structure,
    label_neighbours,
    linear_probe,
    neighbour_stability,
    retrieval,
    compression,
    stress_response,
    model_comparison,
    seed_contrasts,
    drift,
    power,
)
