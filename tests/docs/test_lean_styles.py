"""A style sheet keeps what can match, and everything that the reader of names does not understand."""

from __future__ import annotations

import pytest

from lean_styles import used_rules


@pytest.mark.parametrize(
    ("css", "kept"),
    [
        (".a{x:1}.b{x:2}", ".a{x:1}"),
        (".a,.b,p{x:1}", ".a,p{x:1}"),
        (".a .b{x:1}.a>p{x:2}", ".a>p{x:2}"),
        ("#a{x:1}#b{x:2}", "#a{x:1}"),
        (".a:not(.b){x:1}:is(.b,.a){x:2}", ".a:not(.b){x:1}\n:is(.b,.a){x:2}"),
        ('[class*=".b"]{x:1}', '[class*=".b"]{x:1}'),
        (r".w-1\/2{x:1}.w-1\/3{x:2}", r".w-1\/2{x:1}"),
        ("@media (min-width:1px){.b{x:1}}@media print{.a{x:1}.b{x:2}}", "@media print{.a{x:1}}"),
        ("@font-face{font-family:F}@keyframes k{from{x:1}to{x:2}}", "@keyframes k{from{x:1}to{x:2}}"),
        ('@charset "u;";/* } */.a:before{content:"}{";y:1}', '@charset "u;";\n.a:before{content:"}{";y:1}'),
    ],
)
def test_only_what_nothing_can_match_goes(css, kept):
    assert used_rules(css, {"a", "w-1/2"}) == kept
