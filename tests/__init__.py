"""Tests, by what they need: unit, property, integration, fault, simulation, conformance."""
