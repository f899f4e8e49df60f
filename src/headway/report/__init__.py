"""One run on one page: facts from the run directory, plots, HTML and Markdown from one description of content."""
