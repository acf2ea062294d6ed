"""One image file to pixels, safely."""
