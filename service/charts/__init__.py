"""Pictures of reports: Vega-Lite specifications from what checks declare, and drawings of them."""

from service.charts.catalogue import chart_of, pictures
from service.charts.painter import NOT_INSTALLED, Format, Painter
from service.charts.picture import Picture

__all__ = ["NOT_INSTALLED", "Format", "Painter", "Picture", "chart_of", "pictures"]
