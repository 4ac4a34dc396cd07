"""What a reader gets from run directories: numbers for a terminal, one HTML page, one picture."""

from rlep.report.build import ReportFiles, build_report
from rlep.view.summary import BaselineReached, RunSummary, Summary, summary

__all__ = ["BaselineReached", "ReportFiles", "RunSummary", "Summary", "build_report", "summary"]
