"""What a reader gets from run directories: numbers for a terminal, one HTML page, one picture."""

from rlep.services.report.build import ReportFiles, build_report
from rlep.services.report.summary import Crossing, RunSummary, Summary, summary

__all__ = ["Crossing", "ReportFiles", "RunSummary", "Summary", "build_report", "summary"]
