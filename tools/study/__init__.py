"""The parts of tools/study.py."""
