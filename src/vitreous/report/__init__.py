"""Figures and pages: of runs, batches and audits."""
