"""Schedules for processors."""
