"""Reports for people: a page to read, and a summary for a pull request."""

from service.rendering.page import CONTENT_SECURITY_POLICY, Drawing, report_page
from service.rendering.summary import report_summary

__all__ = ["CONTENT_SECURITY_POLICY", "Drawing", "report_page", "report_summary"]
