"""Views of a plan: text, tables, one quantity explained. Nothing is computed here."""
