"""How a tokenizer comes to be one tokenizer.json: how text is split, files that are brought, what is proven of it."""
