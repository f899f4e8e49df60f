"""What is done to documents before they become tokens: named, versioned, counted steps.

    documents(source) -> text -> extensions -> code -> languages -> secrets -> personal -> quality -> repeats
                      -> contamination -> duplicates -> near_duplicates -> lines -> (repositories) -> spool

    pipeline.py       the order of the steps, and what passes a document through them
    record.py         what each step left out, by reason: for the manifest, the report and the screen
    steps.py          what a step is
    normalisation.py  selection.py  code.py  sensitive.py  quality.py  contamination.py  duplicates.py  near_duplicates.py

A step looks at one document and what was kept before it, and lets it pass, changes it, or leaves it out. A document that was
changed passes the steps again until none changes it any more, and only then do the steps take note of it as kept. So preparing
what was prepared changes nothing, and no document is compared with one that is not in the result.

Sources are prepared in the order of their names, whatever their order in the recipe: of equal documents, the one in the source
whose name sorts first is kept. (Without the step ``duplicates`` only the build compares, and keeps the first in the recipe.)
"""
