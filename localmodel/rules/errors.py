"""Errors of the rules.

RulesError              anything wrong with rule data or its use
└── BadRuleFile         a rule file has an unknown key, a wrong type or no value at a date
"""


class RulesError(Exception):
    """Root of all errors raised by `localmodel.rules`."""


class BadRuleFile(RulesError):
    """A rule file cannot be used."""
