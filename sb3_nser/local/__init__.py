"""A language model of one's own behind Ollama's API, for machines on which Ollama is not installed."""

from sb3_nser.local.models import CATALOGUE, DEFAULT_MODEL, CatalogueModel, cache_dir, resolve_model
from sb3_nser.local.process import EmbeddedServer, start_server

__all__ = ["CATALOGUE", "DEFAULT_MODEL", "CatalogueModel", "EmbeddedServer", "cache_dir", "resolve_model", "start_server"]
