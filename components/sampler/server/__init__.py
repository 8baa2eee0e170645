"""The embedded server, `python -m components.sampler.server`: SGLang's native HTTP protocol over our engine."""
