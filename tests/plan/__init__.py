"""Tests of the planner's templates, pages and boot scripts with the tools of their makers."""
