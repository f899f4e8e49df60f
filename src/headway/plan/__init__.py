"""Spec and deployment to a plan: sections of quantities that can say why, tables, risks."""
