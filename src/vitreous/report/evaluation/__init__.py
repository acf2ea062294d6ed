"""The report of an evaluation: figures with intervals as JSON and CSV, and one self-contained page.

`results` computes everything from logits, and knows no page; `robustness` holds the errors on changed images.
`documents` writes both as JSON and CSV. The page: `charts` and `matrix` the figures,
`tables` the tables, `thumbnails` embeds images and class maps, `sheets` shows them, and `page` puts the sections
together; `page.css` and `page.js` are its own style and script.
`folder` writes all files at once.
"""
