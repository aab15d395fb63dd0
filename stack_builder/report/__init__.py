"""One report, three views: text, JSON, SARIF."""

from stack_builder.report.model import Finding, Report, Rule, Severity, Skipped, Target, Verdict

__all__ = ["Finding", "Report", "Rule", "Severity", "Skipped", "Target", "Verdict"]
