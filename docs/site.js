/* Wide tables scroll; so that the keyboard can scroll them, they take the focus. */
document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
});
